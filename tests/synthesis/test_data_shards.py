"""`toolkit-data run` over machines: the rows that are kept of all shards' answers are those of one process."""

from collections.abc import Callable
from pathlib import Path

import pytest
from data_cases import DataCase, killed_after, require_sums
from words_server import WordsServer


@pytest.fixture
def whole(answered: DataCase, data: Callable) -> dict[str, bytes]:
    """The files that one process leaves; nothing of them is left."""
    data("run", answered.config)
    files = answered.files()
    answered.output.rename(answered.folder / "whole")
    return files


def shard_files(case: DataCase) -> list[str]:
    return [path.name.partition(".jsonl.")[2] for path in sorted(case.output.rglob("*.shard-*"))]


def test_what_is_kept_of_all_shards_is_what_one_process_keeps(case: DataCase, whole: dict[str, bytes], data: Callable):
    # 4 answers to each of 12 prompts, 16 at once: three batches.
    for number in (2, 3, 1):
        assert "16 answers: " in data("run", case.config, "--shard", f"{number}/3").stderr
        assert not list(case.output.glob("*.jsonl"))
    assert shard_files(case) == ["shard-1-of-3", "shard-2-of-3", "shard-3-of-3"]
    assert "joined 48 answers of 3 shards" in data("run", case.config, "--join").stderr
    assert case.files() == whole
    require_sums(case.ledger())
    # A command that was killed after it had joined them goes on.
    (case.output / "pairs.jsonl").unlink()
    for again in ("--join", "--shard=1/3"):
        assert "loading" not in data("run", case.config, again).stderr
    assert case.files() == whole


def test_a_shard_that_is_killed_goes_on(case: DataCase, data: Callable, tmp_path: Path):
    case.change(sample={"n": 4, "max_new_tokens": 24, "batch_size": 1, "stop": ["e"]})
    limited = ("--set", "prompts.limit=5")
    data("run", case.config, *limited)
    whole = case.files()
    case.output.rename(tmp_path / "whole")
    killed_after(3, "*.shard-1-of-2", case, *limited, "--shard", "1/2")
    data("run", case.config, *limited, "--shard", "2/2")
    assert "answers\n" in data("run", case.config, *limited, "--join", expect=2).stderr
    data("run", case.config, *limited, "--shard", "1/2")
    data("run", case.config, *limited, "--join")
    assert case.files() == whole


def test_a_server_is_asked_by_each_shard_for_its_own_prompts(case: DataCase, served: WordsServer, data: Callable):
    data("run", case.config)
    assert len(served.asked) == 12 * 4
    whole = case.files()
    case.output.rename(case.folder / "whole")
    data("run", case.config, "--shard", "1/2")
    assert len(served.asked) == 12 * 4 + 6 * 4
    data("run", case.config, "--shard", "2/2")
    data("run", case.config, "--join")
    assert case.files() == whole
    assert len(served.asked) == 2 * 12 * 4


def test_shards_that_cannot_be_joined_keep_nothing(case: DataCase, served: WordsServer, data: Callable):
    assert "there are no shards to join" in data("run", case.config, "--join", expect=2).stderr
    data("run", case.config, "--shard", "1/2")
    assert ".shard-2-of-2 is not there" in data("run", case.config, "--join", expect=2).stderr
    data("run", case.config, "--shard", "2/2", "--set", "sample.seed=1")
    assert ".shard-2-of-2 is not there" in data("run", case.config, "--join", expect=2).stderr
    assert "give one of the two" in data("run", case.config, "--join", "--shard", "2/2", expect=2).stderr
    assert not list(case.output.glob("*.jsonl"))


def test_rows_of_another_config_are_told_before_a_shard_is_answered(
    answered: DataCase, served: WordsServer, data: Callable
):
    data("run", answered.config)
    count = len(served.asked)
    told = data("run", answered.config, "--shard", "1/2", "--set", "sample.seed=1", expect=2).stderr
    assert "good.jsonl was written with another config" in told
    assert len(served.asked) == count
