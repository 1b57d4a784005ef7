"""What a user's grader does to its process affects no other grader and does not keep the server from exiting."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataserver.serving import Server, a_config, gold_of, serving, still_running

# Replaces the score of another grader and, on "stop", stops its parent process.
MEDDLES = """
import os
import signal

from posttrain.dataserver.graders.string_exact import StringExact


def score(item):
    StringExact.score = lambda self, item: 1.0
    if item.completion == "stop":
        os.kill(os.getppid(), signal.SIGSTOP)
        os._exit(1)
    return 1.0
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    columns = {"columns": {"prompt": "question"}, "gold": {"column": "answer", "extract": {"after": "####"}}}
    config = a_config(
        tmp_path / "config",
        graders={"meddles": {"type": "python", "path": "meddles.py:score"}},
        datasets={
            "sums": {"path": "sums.jsonl", **columns, "graders": {"string_exact": 1, "meddles": 1}},
            "words": {"path": "words.jsonl", **columns, "graders": {"string_exact": 1}},
        },
        stages=[{"name": "one", "until_step": 4, "mix": {"sums": 1, "words": 1}}],
        limits={"workers": 1, "grade_seconds": 5},
    )
    config.with_name("meddles.py").write_text(MEDDLES)
    with serving(config) as server:
        yield server


def test_a_grader_that_changes_another_one_in_its_process_changes_no_reward(server: Server) -> None:
    samples = {sample.dataset: sample for sample in server.sample(0, 8).samples}
    sums, words = samples["sums"], samples["words"]

    def graded(request_id: str) -> list[tuple[float | None, list[str]]]:
        completions = [(sums, "wrong"), (words, "wrong"), (words, gold_of(words))]
        items = [
            {"item_id": str(number), "sample_id": sample.sample_id, "completion": f"{said}{' ' * len(request_id)}"}
            for number, (sample, said) in enumerate(completions)
        ]
        results = server.grade(items, request_id).results
        return [(result.reward, sorted(result.components)) for result in results]

    # Half of the first reward comes from the meddling grader itself.
    expected = [(0.5, ["meddles", "string_exact"]), (0.0, ["string_exact"]), (1.0, ["string_exact"])]
    assert [graded("a" * times) for times in (1, 2, 3)] == [expected] * 3


def test_a_grader_that_stops_the_process_it_comes_from_does_not_keep_the_server_from_ending(server: Server) -> None:
    samples = {sample.dataset: sample for sample in server.sample(0, 8).samples}
    item = {"item_id": "a", "sample_id": samples["sums"].sample_id, "completion": "stop"}
    (result,) = server.grade([item], "a").results
    assert result.reward is None
    family = server.family()

    assert server.end(signal.SIGTERM, 40) == 0
    assert still_running(family, 10) == []
