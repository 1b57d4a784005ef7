"""The cache of large splits: when a split is reused and when it is computed again."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.masks import TokenRow
from posttrain.data import splits
from posttrain.data.ledger import Ledger
from posttrain.data.splits import held_out_rows, split_each
from posttrain.data.tokenized import TokenizedDataset
from token_rows import from_rows


def dataset(contents: list[int], name: str = "d") -> TokenizedDataset:
    """Row r is the single token r."""
    rows = [TokenRow([row], [True]) for row in range(len(contents))]
    return from_rows(name, rows, [(row + 1, 1.0, content) for row, content in enumerate(contents)], Ledger(name), "")


def tokens(data: TokenizedDataset) -> list[int]:
    return [int(data.row(row)[0][0]) for row in range(len(data))]


@pytest.fixture
def kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of cached splits, with four rows enough for a split to be cached."""
    monkeypatch.setattr(splits, "_ROWS_WORTH_KEEPING", 4)
    return own_cache.parent / "splits"


def test_both_sides_of_a_split_are_rows_of_the_whole(own_cache: Path):
    contents = list(range(100, 130))
    training, (validation,) = split_each({"d": dataset(contents)}, 0.2, 5)
    rows = held_out_rows(contents, 0.2, 5, "d")
    assert [tokens(training["d"]), tokens(validation)] == [side.tolist() for side in rows]
    assert (len(training["d"]), len(validation)) == (24, 6)


def test_few_rows_are_split_without_the_cache(kept: Path):
    split_each({"d": dataset([1, 2, 3])}, 0.4, 0)
    assert not kept.exists()


def test_the_second_split_is_read_from_disk(kept: Path):
    contents = list(range(40))
    first = split_each({"d": dataset(contents)}, 0.2, 0)
    (folder,) = kept.iterdir()
    # A different split in the cache shows that the cache is read.
    np.save(folder / "validation.npy", np.array([3, 4]))
    training, (validation,) = split_each({"other": dataset(contents)}, 0.2, 0)
    assert tokens(validation) == [3, 4]
    assert tokens(training["other"]) == tokens(first[0]["d"])
    assert len(list(kept.iterdir())) == 1


def test_other_contents_another_order_share_or_seed_are_other_splits(kept: Path):
    for contents, fraction, seed in (
        (range(40), 0.2, 0),
        (range(1, 41), 0.2, 0),
        ([1, 0, *range(2, 40)], 0.2, 0),
        (range(40), 0.25, 0),
        (range(40), 0.2, 1),
    ):
        training, (validation,) = split_each({"d": dataset(list(contents))}, fraction, seed)
        rows = held_out_rows(contents, fraction, seed, "d")
        assert [tokens(training["d"]), tokens(validation)] == [side.tolist() for side in rows]
    assert len(list(kept.iterdir())) == 5


def _cut(folder: Path) -> None:
    path = folder / "train.npy"
    path.write_bytes(path.read_bytes()[:-1])


def _lost(folder: Path) -> None:
    (folder / "validation.npy").unlink()


@pytest.mark.parametrize("damage", [_cut, _lost])
def test_a_damaged_split_is_made_anew(kept: Path, damage):
    whole = {"d": dataset(list(range(40)))}
    first = split_each(whole, 0.2, 0)
    damage(next(kept.iterdir()))
    for training, (validation,) in (split_each(whole, 0.2, 0) for _ in range(2)):
        assert tokens(training["d"]) == tokens(first[0]["d"])
        assert tokens(validation) == tokens(first[1][0])


def one_by_one(contents: list[int], fraction: float, seed: int) -> list[int]:
    """The rows held out, one content at a time as defined."""
    rows_of = {content: contents.count(content) for content in contents}
    order = sorted(
        rows_of,
        key=lambda content: hashlib.blake2b(
            content.to_bytes(8, "big"), key=str(seed).encode(), digest_size=16
        ).digest(),
    )
    target, chosen, count = max(1, round(fraction * len(contents))), set[int](), 0
    for content in order:
        if count + rows_of[content] <= target and len(chosen) < len(order) - 1:
            chosen.add(content)
            count += rows_of[content]
    chosen = chosen or {min(order, key=lambda content: rows_of[content])}
    return [row for row, content in enumerate(contents) if content in chosen]


@given(
    contents=st.lists(st.integers(0, 12) | st.integers(0, 2**64 - 1), min_size=2, max_size=60).filter(
        lambda each: len(set(each)) > 1
    ),
    fraction=st.floats(0.001, 0.999),
    seed=st.integers(-5, 2**64),
)
def test_contents_are_taken_in_the_order_of_their_ranks_for_as_long_as_they_fit(contents, fraction, seed):
    assert held_out_rows(contents, fraction, seed, "d")[1].tolist() == one_by_one(contents, fraction, seed)


def test_stretches_that_are_looked_at_together_change_nothing(monkeypatch: pytest.MonkeyPatch):
    contents = [content % 37 for content in range(100)]
    monkeypatch.setattr(splits, "_STRETCH", 7)
    assert held_out_rows(contents, 0.3, 1, "d")[1].tolist() == one_by_one(contents, 0.3, 1)
