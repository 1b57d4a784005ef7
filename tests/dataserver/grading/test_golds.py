"""Gold answers are checked once, before the server is ready, and those no grader can use are reported by location."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dataserver.dataserver_cases import make_config, questions, write_rows
from posttrain.base.cache import cache_dir
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.golds import check_golds
from posttrain.dataserver.grading.pool import GradingPools
from posttrain.dataserver.grading.worker import Task
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError
from running import BIN

if TYPE_CHECKING:
    from posttrain.dataserver.grading.rewards import Judgement

Told = list[tuple[str, int, int]]
Check = Callable[..., Told]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own cache."""
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pools() -> Iterator[list[GradingPools]]:
    pools: list[GradingPools] = []
    yield pools
    for pool in pools:
        pool.close()


@pytest.fixture
def check(tmp_path: Path, pools: list[GradingPools]) -> Check:
    """`check(**section)` checks the golds of sums.jsonl and returns the reported progress."""

    def run(graders: Any = None, **section: Any) -> Told:
        config = make_config(tmp_path, {"sums": section}, graders=graders or {}, limits={"workers": 1})
        return check_all(config, pools)

    return run


def check_all(config: DataserverConfig, pools: list[GradingPools]) -> Told:
    loaded = Loaded.read(config, lambda line: None)
    pool = loaded.new_pool()
    pools.append(pool)
    told: Told = []
    asyncio.run(check_golds(loaded, pool, lambda *progress: told.append(progress)))
    return told


def rows_with(answers: Sequence[Any], folder: Path) -> Path:
    rows = [{"prompt": f"q {number}", "answer": answer} for number, answer in enumerate(answers)]
    return write_rows(folder / "sums.jsonl", rows)


def test_every_row_that_cannot_be_graded_is_named_by_its_line(check: Check, tmp_path: Path) -> None:
    file = rows_with(["1", {"a": 1}, "2", [], "3", True], tmp_path)
    with pytest.raises(DataError) as error:
        check()
    assert str(error.value).splitlines() == [
        "datasets.sums: 3 rows cannot be graded:",
        f"  {file}:2: string_exact: the gold must be a text or a list of texts, not {{'a': 1}}",
        f"  {file}:4: string_exact: the gold must be a text or a list of texts, not []",
        f"  {file}:6: string_exact: the gold must be a text or a list of texts, not True",
        "fix the rows, or remove them from the file",
    ]


def test_what_is_wrong_in_all_data_sets_is_told_at_once(tmp_path: Path, pools: list[GradingPools]) -> None:
    for name in ("sums", "words"):
        write_rows(tmp_path / f"{name}.jsonl", [{"prompt": f"q {n}", "answer": {"n": n}} for n in range(25)])
    with pytest.raises(DataError) as error:
        check_all(make_config(tmp_path, {"sums": {}, "words": {}}, limits={"workers": 1}), pools)
    told = str(error.value).splitlines()
    assert len(told) == 2 * (1 + 20 + 1) + 1
    assert told[0] == "datasets.sums: 25 rows cannot be graded:"
    assert told[21:23] == ["  ... and 5 more", "datasets.words: 25 rows cannot be graded:"]


def test_the_graders_of_every_stage_are_asked(tmp_path: Path, pools: list[GradingPools]) -> None:
    file = rows_with(["1", "2 or 3"], tmp_path)
    last = {"name": "last", "until_step": 2, "mix": {"sums": 1}, "grading": {"sums": {"graders": {"number_exact": 1}}}}
    stages = [{"name": "first", "until_step": 1, "mix": {"sums": 1}}, last]
    with pytest.raises(DataError, match=f"{file}:2: number_exact: the gold must contain exactly one plain number"):
        check_all(make_config(tmp_path, {"sums": {}}, stages=stages, limits={"workers": 1}), pools)


def test_a_row_whose_tests_do_not_fit_into_the_time_for_a_completion_is_named(
    tmp_path: Path, pools: list[GradingPools]
) -> None:
    tests = [[{"input": "", "output": "1"}] * count for count in (4, 5)]
    file = write_rows(tmp_path / "sums.jsonl", [{"prompt": f"q {n}", "tests": each} for n, each in enumerate(tests)])
    code = {"type": "code_stdio", "seconds": 0.5, "sandbox": "rlimits"}

    def check(seconds: float) -> Told:
        return check_all(
            make_config(
                tmp_path,
                {"sums": {"graders": {"code": 1}, "gold": None}},
                graders={"code": code},
                allow_code_execution=True,
                limits={"workers": 1, "grader_seconds": seconds},
            ),
            pools,
        )

    assert check(2.5) == [("sums", 2, 2)]
    with pytest.raises(DataError) as error:
        check(2.0)
    assert str(error.value).splitlines()[1] == (
        f"  {file}:2: code: one completion may take 2.5 s under the grader's own limits, but limits.grader_seconds is 2"
    )


def test_good_golds_are_checked_once(check: Check, pools: list[GradingPools], tmp_path: Path) -> None:
    rows_with(["1", "2", "3"], tmp_path)
    assert check() == [("sums", 3, 3)]
    assert check() == []


def test_a_second_start_needs_no_process(tmp_path: Path, pools: list[GradingPools]) -> None:
    rows_with(["1", "2", "3"], tmp_path)
    config = make_config(tmp_path, {"sums": {}}, limits={"workers": 1})
    check_all(config, pools)
    loaded = Loaded.read(config, lambda line: None)
    closed = loaded.new_pool()
    closed.close()
    told: Told = []
    asyncio.run(check_golds(loaded, closed, lambda *progress: told.append(progress)))
    assert told == []


@pytest.mark.parametrize(
    "change",
    [
        {"graders": {"string_exact": {"type": "string_exact", "ignore_case": False}}},
        {"gold": {"extract": "last_number"}},
        {"gates": ["number_exact"]},
    ],
    ids=str,
)
def test_what_may_change_the_outcome_is_checked_anew(change: dict[str, Any], check: Check, tmp_path: Path) -> None:
    rows_with(["1", "2", "3"], tmp_path)
    check()
    assert check(**change) == [("sums", 3, 3)]


def test_another_row_is_checked_anew(check: Check, tmp_path: Path) -> None:
    rows_with(["1", "2", "3"], tmp_path)
    check()
    rows_with(["1", "2", "4"], tmp_path)
    assert check() == [("sums", 3, 3)]


def test_what_changes_no_outcome_is_not_checked_anew(check: Check, tmp_path: Path) -> None:
    file = rows_with(["1", "2", "3"], tmp_path)
    check()
    file.rename(tmp_path / "other.jsonl")
    assert check(path="other.jsonl", system="Be short.", validation_fraction=0.3) == []


def test_bad_golds_are_not_taken_for_good_ones_at_the_next_start(check: Check, tmp_path: Path) -> None:
    rows_with(["1", {"a": 1}], tmp_path)
    for _ in range(2):
        with pytest.raises(DataError, match="1 row cannot be graded"):
            check()
    assert not list((cache_dir() / "golds").glob("*"))


def test_graders_that_want_nothing_of_a_row_cost_nothing(tmp_path: Path, pools: list[GradingPools]) -> None:
    rows_with(["1", {"a": 1}], tmp_path)
    config = make_config(tmp_path, {"sums": {"graders": {"json_valid": 1}}}, limits={"workers": 1})
    assert check_all(config, pools) == []


def test_a_row_with_half_a_character_goes_through_checks_and_grading(tmp_path: Path, pools: list[GradingPools]) -> None:
    (tmp_path / "sums.jsonl").write_bytes(rb'{"prompt": "q", "answer": "x", "source": "\ud800", "\udfff": "\udfff"}')
    config = make_config(tmp_path, {"sums": {}}, limits={"workers": 1})
    assert check_all(config, pools) == [("sums", 1, 1)]
    loaded = Loaded.read(config, lambda line: None)
    target = loaded.samples.target(loaded.samples.sample_id("sums", 0))
    found: dict[int, Judgement] = {}
    tasks = [
        Task(("string_exact",), GradeInput(completion, None, gold=target.gold, record=target.row.record))
        for completion in ("\ud800 x", "x", "\ud800")
    ]
    asyncio.run(pools[0].grade(tasks, lambda number, judged: found.update({number: judged["string_exact"]})))
    assert [found[number].score for number in range(3)] == [0.0, 1.0, 0.0]


def test_the_command_ends_where_a_gold_is_bad(tmp_path: Path) -> None:
    rows = [*questions("sums", 2), {"prompt": "q", "answer": "about 2 or 3"}]
    write_rows(tmp_path / "sums.jsonl", rows)
    config = {
        "datasets": {"sums": {"path": "sums.jsonl", "graders": {"number_exact": 1}}},
        "stages": [{"name": "all", "until_step": 1, "mix": {"sums": 1}}],
        "limits": {"workers": 1},
        "listen": {"port": 0},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    ready = tmp_path / "ready.json"
    finished = subprocess.run(
        [BIN / "toolkit-rl-dataserver", tmp_path / "run.yaml", "--ready-file", ready],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (finished.returncode, finished.stdout) == (2, "")
    shown, error = finished.stderr.split("error: ")
    assert error.splitlines() == [
        "datasets.sums: 1 row cannot be graded:",
        f"  {tmp_path}/sums.jsonl:3: number_exact: the gold must contain exactly one plain number, but is "
        "'about 2 or 3'",
        "fix the rows, or remove them from the file",
    ]
    assert "ready\n" not in shown
    assert not ready.exists()
