"""How rows are dealt to shards: each row once, evenly, and in batches that are those of one process."""

import random

import pytest

from posttrain.errors import ConfigError
from posttrain.inference.answering.shards import Shard, shards_beside
from posttrain.inference.engine import GenerationRequest, plan_batches, plan_groups


def test_groups_are_dealt_in_turn_longest_first():
    # Two answers each, four at once: two prompts are a batch, and the longest prompts come first.
    groups = plan_groups([5, 9, 9, 2, 7], n=2, batch_size=4)
    assert groups == [[1, 2], [4, 0], [3]]
    assert Shard(1, 2).places(groups) == [1, 2, 3]
    assert Shard(2, 2).places(groups) == [0, 4]


def test_a_group_has_as_few_rows_as_fill_whole_batches():
    # 3 answers each, 4 at once: 4 rows are 12 answers, three batches.
    assert [len(group) for group in plan_groups([1] * 10, n=3, batch_size=4)] == [4, 4, 2]
    assert [len(group) for group in plan_groups([1] * 10, n=8, batch_size=4)] == [1] * 10
    assert plan_groups([], n=1, batch_size=4) == []


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize("batch_size", [1, 4, 6, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_batches_of_all_shards_are_those_of_all_rows(n: int, batch_size: int, count: int):
    lengths = random.Random(f"{n} {batch_size} {count}").choices(range(1, 9), k=41)
    requests = [GenerationRequest((row,) * length, tuple(range(n))) for row, length in enumerate(lengths)]
    groups = plan_groups(lengths, n, batch_size)
    found = []
    for number in range(1, count + 1):
        places = Shard(number, count).places(groups)
        assert places == sorted(places)
        own = plan_batches([requests[place] for place in places], batch_size)
        found += [tuple((places[place], sample) for place, sample in batch) for batch in own]
    assert sorted(found) == sorted(plan_batches(requests, batch_size))


@pytest.mark.parametrize("text", ["", "0/8", "9/8", "1/", "2", "1/0", "a/b", "1/2/3", "-1/2", "1 / 2", "¹/²"])
def test_what_is_no_shard_is_refused_with_an_example(text: str):
    with pytest.raises(ConfigError, match="1/8 to 8/8 for eight machines"):
        Shard.chosen(text, join=False)


def test_files_of_shards_are_found_and_nothing_else(tmp_path):
    output = tmp_path / "out.jsonl"
    assert shards_beside(tmp_path / "nowhere" / "out.jsonl") == []
    for shard in (Shard(10, 12), Shard(2, 12), Shard(1, 3)):
        shard.file_of(output).touch()
    for name in ("out.jsonl.shard-1-of-3.lock", ".out.jsonl.shard-2-of-3.lock", "outxjsonl.shard-1-of-2", "out.jsonl"):
        (tmp_path / name).touch()
    assert shards_beside(output) == [Shard(1, 3), Shard(2, 12), Shard(10, 12)]
