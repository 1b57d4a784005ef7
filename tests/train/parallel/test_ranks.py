"""Ranks of a sharded model take part in equally many passes, of which each batch counts once."""

import pytest

from posttrain.train.parallel.ranks import in_turn


def turns(rank: int, ranks: int, *, in_step: bool, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    return list(in_turn("abcde", in_step=in_step))


def test_five_batches_over_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (turns(rank, 2, in_step=False, monkeypatch=monkeypatch) for rank in range(2))
    assert first == [("a", True), ("c", True), ("e", True)]
    assert second == [("b", True), ("d", True)]


def test_in_step_the_rank_with_fewer_takes_part_in_the_last_pass_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns(1, 2, in_step=True, monkeypatch=monkeypatch) == [("b", True), ("d", True), ("e", False)]
    assert turns(3, 4, in_step=True, monkeypatch=monkeypatch) == [("d", True), ("e", False)]
