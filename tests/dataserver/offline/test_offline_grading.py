"""Completions are graded as they are read and passed on in order, with few in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from offline_cases import load, write_config

from posttrain.dataserver.offline.completions import Completion
from posttrain.dataserver.offline.grading import Judged, data_files, grade_all, graded_line
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import ConfigError, DataError


def completion(loaded: Loaded, number: int, text: str, iteration: int = 0) -> Completion:
    return Completion(
        place=f"c.jsonl:{number}",
        number=number,
        sample_id=loaded.samples.sample_id("sums", number % 5),
        iteration=iteration,
        text=text,
        completion_tokens=None,
        truncated=None,
    )


def grade(loaded: Loaded, *completions: Completion) -> list[tuple[Completion, Judged]]:
    """Each completion with its result."""
    done: list[tuple[Completion, Judged]] = []
    grade_all(loaded, completions, len(completions), lambda each, judged: done.append((each, judged)))
    return done


def test_many_are_handed_on_in_order_with_few_under_way(loaded: Loaded):
    total, taken, done = 3000, 0, 0
    most_under_way = 0

    def completions() -> Iterator[Completion]:
        nonlocal taken, most_under_way
        for number in range(total):
            taken += 1
            most_under_way = max(most_under_way, taken - done)
            yield completion(loaded, number, f"{number / total} 1")

    def count(each: Completion, judged: Judged) -> None:
        nonlocal done
        assert each.number == done
        assert judged.result.components["one"].score == each.number / total
        done += 1

    grade_all(loaded, completions(), total, count)
    assert done == total
    assert most_under_way <= 1024


def test_one_that_cannot_be_graded_costs_no_other_its_score(loaded: Loaded):
    texts = ["1 1", "exit 1", "raise 1", "abstain 1", "sleep 1", "0.5 0.25"]
    results = [judged.result for _, judged in grade(loaded, *(completion(loaded, n, t) for n, t in enumerate(texts)))]
    assert [result.status for result in results] == ["ok", "error", "error", "abstain", "error", "ok"]
    assert [result.reward for result in results] == [1.0, None, None, None, None, 0.375]
    assert results[2].reason == "one: ValueError: told to raise"
    assert results[4].reason == "one: timeout"


def test_the_iteration_decides_the_weights(loaded: Loaded):
    done = grade(loaded, *(completion(loaded, 0, "1 0.5", iteration) for iteration in (9, 10, 999)))
    # (1 + 0.5)/2; and (3·1 + 0.5)/4 · 0.5, also after the last stage.
    assert [(judged.stage, judged.result.reward) for _, judged in done] == [
        ("early", 0.75),
        ("late", 0.4375),
        ("late", 0.4375),
    ]


def test_held_out_rows_are_graded_alike_at_every_iteration(tmp_path: Path):
    loaded = load(write_config(tmp_path), "datasets.sums.validation_fraction=0.2")
    held_out = int(loaded.sides["sums"].validation[0])
    done = grade(loaded, *(completion(loaded, held_out, "1 0.5", iteration) for iteration in (0, 15)))
    assert [(judged.stage, judged.result.reward) for _, judged in done] == [("validation", 0.75)] * 2


def test_one_that_the_server_would_not_take_gets_the_same_error_here(tmp_path: Path):
    loaded = load(write_config(tmp_path), "limits.completion_chars=3")
    (_, long), (_, short) = grade(loaded, completion(loaded, 0, "1 01"), completion(loaded, 1, "1 1"))
    assert (long.result.status, long.result.reason) == ("error", "the completion is longer than 3 characters")
    assert short.result.reward == 1.0


def test_a_line_of_output_says_what_was_asked_answered_and_given(loaded: Loaded):
    ((each, judged),) = grade(loaded, completion(loaded, 2, "1 0", 3))
    line = graded_line(each, judged)
    components = line.pop("components")
    assert line == {
        "dataset": "sums",
        "sample_id": loaded.samples.sample_id("sums", 2),
        "iteration": 3,
        "stage": "early",
        "status": "ok",
        "reward": 0.5,
        "reason": "",
        "prompt": "sums 3?",
        "gold": "sums-3",
        "completion": "1 0",
        "completion_tokens": None,
        "truncated": None,
    }
    assert isinstance(components, dict)
    assert components["two"].items() >= {"score": 0.0, "weight": 0.5, "status": "ok", "detail": "as told"}.items()


def test_graders_that_cannot_be_loaded_are_told_before_anything_is_graded(tmp_path: Path):
    loaded = load(write_config(tmp_path))
    (tmp_path / "told.py").write_text("import nothing_of_that_name")
    with pytest.raises(ConfigError, match=r"^graders.one: .*nothing_of_that_name"):
        grade(loaded, completion(loaded, 0, "1 1"))


def test_a_token_that_is_not_there_is_told_before_anything_is_graded(tmp_path: Path):
    judge = {"type": "http", "url": "http://127.0.0.1:9/", "token_env": "NO_SUCH_TOKEN"}
    dataset = {"path": "sums.jsonl", "columns": {"prompt": "question"}, "graders": {"judge": 1}}
    stages = [{"name": "all", "until_step": 1, "mix": {"sums": 1}}]
    loaded = load(write_config(tmp_path, graders={"judge": judge}, datasets={"sums": dataset}, stages=stages))
    with pytest.raises(ConfigError, match=r"^graders\.judge: the environment variable NO_SUCH_TOKEN is not set"):
        grade(loaded, completion(loaded, 0, "1 1"))


def test_a_row_that_is_not_there_ends_the_grading_with_what_is_under_way(loaded: Loaded):
    good = completion(loaded, 0, "1 1")

    def completions() -> Iterator[Completion]:
        yield from [good] * 600
        yield Completion(**{**vars(good), "sample_id": "sums:9:abc"})

    with pytest.raises(DataError, match="unknown sample 'sums:9:abc'"):
        grade_all(loaded, completions(), 601, lambda each, judged: None)


def test_the_files_of_the_data_sets_are_known_so_that_none_is_an_output(loaded: Loaded, tmp_path: Path):
    assert tmp_path / "sums.jsonl" in data_files(loaded.config)
