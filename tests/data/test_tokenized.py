"""Tokenised data sets: rows, subsets, concatenation, and the cache on disk."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.masks import TokenRow
from posttrain.data.ledger import Ledger
from posttrain.data.token_arrays import TokenArrays
from posttrain.data.tokenized import TokenizedDataset, cache_key, concatenate, load, new_dataset
from token_rows import from_rows

Lists = list[tuple[list[int], list[bool]]]


def arrays(rows: Lists, start: int = 0) -> TokenArrays:
    """Rows numbered from `start`; row r has line 10 + r, weight r + 0.5 and content hash 100 + r."""
    described = [(10 + row, row + 0.5, 100 + row) for row in range(start, start + len(rows))]
    return TokenArrays.from_rows([TokenRow(*row) for row in rows], described)


def ledger(name: str = "d") -> Ledger:
    return Ledger(name, records=5, rows=3, dropped={"too long": 2}, faults=["file:3: ü"])


def dataset(rows: Lists, name: str = "d") -> TokenizedDataset:
    return TokenizedDataset(name, (arrays(rows),), ledger(name), "digest of the file")


THREE_ROWS = [([1, 2, 3], [False, True, True]), ([4], [False]), ([5, 6], [True, False])]
THREE = dataset(THREE_ROWS)
NONE = np.array([], dtype=np.int64)


def rows_of(data: TokenizedDataset) -> Lists:
    rows = [data.row(index) for index in range(len(data))]
    return [(ids.tolist(), trained.tolist()) for ids, trained in rows]


def all_of(data: TokenizedDataset) -> list[list]:
    """Everything that a data set stores per row."""
    sizes = data.sizes()
    columns = [
        data.lines,
        data.weights,
        data.contents,
        data.lengths(),
        data.trained_counts(),
        data.prompt_lengths(),
        *(
            np.array([numbers[row] for row in range(len(data))])
            for numbers in (sizes.lengths, sizes.trained_counts, sizes.weights)
        ),
    ]
    return [rows_of(data), *(column.tolist() for column in columns)]


def test_a_row_is_its_ids_and_which_of_them_are_trained():
    assert rows_of(THREE) == THREE_ROWS


def test_lengths_trained_tokens_and_prompts_are_counted_by_row():
    assert THREE.lengths().tolist() == [3, 1, 2]
    assert THREE.trained_counts().tolist() == [2, 0, 1]
    # A row without trained tokens is all prompt.
    assert THREE.prompt_lengths().tolist() == [1, 1, 0]


def test_the_step_planner_gets_the_numbers_of_each_row():
    sizes = THREE.sizes()
    assert [[sizes.lengths[row], sizes.trained_counts[row], sizes.weights[row]] for row in range(3)] == [
        [3, 2, 0.5],
        [1, 0, 1.5],
        [2, 1, 2.5],
    ]


def test_a_subset_has_the_rows_asked_for_in_the_order_asked_for():
    subset = THREE.subset(np.array([2, 0]), "part")
    assert (subset.name, subset.ledger, subset.digest) == ("part", THREE.ledger, THREE.digest)
    assert rows_of(subset) == [THREE_ROWS[2], THREE_ROWS[0]]
    assert (subset.lines.tolist(), subset.weights.tolist()) == ([12, 10], [2.5, 0.5])
    assert subset.contents.tolist() == [102, 100]


def test_a_subset_of_no_rows_is_empty():
    subset = THREE.subset(NONE, "none")
    assert (len(subset), rows_of(subset), subset.trained_counts().tolist()) == (0, [], [])


def test_no_tokens_are_copied_for_a_subset_nor_for_several_data_sets_together():
    other = dataset([([7], [True]), ([8, 9], [False, True])], "e")
    whole = concatenate([THREE.subset(np.array([1, 2]), "part"), other], "both")
    for row, stored in ((0, THREE), (1, THREE), (2, other), (3, other)):
        ids, trained = whole.row(row)
        assert np.shares_memory(ids, stored.parts[0].ids)
        assert np.shares_memory(trained, stored.parts[0].trained)


def test_data_sets_are_joined_one_after_another():
    other = dataset([([7], [True]), ([8, 9], [False, True])], "e")
    joined = concatenate([THREE, other], "both")
    assert (joined.name, joined.digest, len(joined)) == ("both", THREE.digest, 5)
    assert rows_of(joined) == [*THREE_ROWS, ([7], [True]), ([8, 9], [False, True])]
    assert joined.lines.tolist() == [10, 11, 12, 10, 11]
    assert joined.weights.tolist() == [0.5, 1.5, 2.5, 0.5, 1.5]
    assert joined.trained_counts().tolist() == [2, 0, 1, 1, 1]


def test_a_part_of_several_parts_together_is_found_where_it_is():
    parts = [THREE.subset(np.array([2, 0]), "one"), dataset([([7], [True])], "e"), THREE]
    joined = concatenate(parts, "joined")
    assert rows_of(joined) == [THREE_ROWS[2], THREE_ROWS[0], ([7], [True]), *THREE_ROWS]
    # The fifth, third and first row.
    part = joined.subset(np.array([4, 2, 0]), "part")
    assert rows_of(part) == [THREE_ROWS[1], ([7], [True]), THREE_ROWS[2]]
    assert part.lines.tolist() == [11, 10, 12]
    assert rows_of(part.subset(np.array([1]), "last")) == [([7], [True])]


def test_a_row_that_is_not_there_is_refused():
    for data in (THREE, THREE.subset(np.array([2, 0]), "part"), concatenate([THREE, THREE], "both")):
        with pytest.raises(IndexError):
            data.row(len(data))


ROWS = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5).map(
        lambda tokens: ([id_ for id_, _ in tokens], [flag for _, flag in tokens])
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(ROWS, min_size=1, max_size=3), st.data())
def test_views_are_equal_to_the_copies_that_they_stand_for(each: list[Lists], draw: st.DataObject):
    views, copies, starts = [], [], [0, *np.cumsum([len(rows) for rows in each])]
    for start, rows in zip(starts, each, strict=False):
        wanted = draw.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10) | st.none())
        view = TokenizedDataset("d", (arrays(rows, start),), ledger(), "")
        views.append(view if wanted is None else view.subset(np.array(wanted, dtype=np.int64), "part"))
        copies += [(start + row, rows[row]) for row in (range(len(rows)) if wanted is None else wanted)]
    joined = concatenate(views, "joined")
    copied = TokenArrays.from_rows(
        [TokenRow(*row) for _, row in copies], [(10 + row, row + 0.5, 100 + row) for row, _ in copies]
    )
    whole = TokenizedDataset("joined", (copied,), ledger(), "")
    assert all_of(joined) == all_of(whole)
    assert joined.token_digest() == whole.token_digest()


@given(ROWS, st.integers(0, 8))
def test_the_two_parts_of_a_data_set_join_to_the_whole(rows: Lists, at: int):
    data = dataset(rows)
    numbers = np.arange(len(data))
    parts = [data.subset(numbers[:at], "one"), data.subset(numbers[at:], "two")]
    assert all_of(concatenate(parts, "d")) == all_of(data)


def test_the_hash_of_the_tokens_changes_with_ids_flags_order_and_where_a_row_ends():
    rows = [([1, 2], [False, True]), ([3], [True])]
    others = [
        [([1, 4], [False, True]), ([3], [True])],
        [([1, 2], [True, True]), ([3], [True])],
        [([3], [True]), ([1, 2], [False, True])],
        [([1], [False]), ([2, 3], [True, True])],
        rows[:1],
    ]
    assert len({dataset(each).token_digest() for each in [rows, *others]}) == 6
    assert dataset(rows, "e").token_digest() == dataset(rows).token_digest()


def save(data: TokenizedDataset, folder: Path, batches: int = 1) -> None:
    """Write the rows of an in-memory data set to `folder`, in `batches` batches."""
    rows = [TokenRow(*row) for row in rows_of(data)]
    described = list(zip(data.lines.tolist(), data.weights.tolist(), data.contents.tolist(), strict=True))
    with new_dataset(folder, data.ledger, data.digest) as writer:
        for places in np.array_split(np.arange(len(rows)), batches):
            writer.add(TokenArrays.from_rows([rows[at] for at in places], [described[at] for at in places]))


def test_what_was_written_is_mapped_from_disk_without_being_read_into_memory(tmp_path):
    save(THREE, tmp_path / "cache" / "key")
    loaded = load(tmp_path / "cache" / "key", "d")
    assert loaded is not None
    assert all_of(loaded) == all_of(THREE)
    assert (loaded.name, loaded.ledger, loaded.digest) == (THREE.name, THREE.ledger, THREE.digest)
    for array, stored in vars(loaded.parts[0]).items():
        assert isinstance(stored.base, np.memmap), array
        assert stored.dtype == getattr(THREE.parts[0], array).dtype
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key"]


@given(ROWS, st.integers(1, 10))
def test_rows_that_are_written_in_pieces_are_the_rows_written_at_once(tmp_path_factory, rows: Lists, batches: int):
    folder = tmp_path_factory.mktemp("cache") / "key"
    data = dataset(rows)
    save(data, folder, batches)
    loaded = load(folder, "d")
    assert loaded is not None
    assert all_of(loaded) == all_of(data)
    assert loaded.token_digest() == data.token_digest()


def test_the_ledger_is_written_as_it_is_in_the_end(tmp_path):
    counted = ledger()
    with new_dataset(tmp_path / "key", counted, "digest") as writer:
        writer.add(THREE.parts[0])
        counted.tokens = 6
    loaded = load(tmp_path / "key", "d")
    assert loaded is not None
    assert loaded.ledger.tokens == 6


def test_a_data_set_of_no_rows_survives_the_cache_too(tmp_path):
    for batches in (0, 1):
        folder = tmp_path / str(batches)
        with new_dataset(folder, ledger(), "") as writer:
            for _ in range(batches):
                writer.add(TokenArrays.from_rows([], []))
        loaded = load(folder, "d")
        assert loaded is not None
        assert (len(loaded), loaded.lines.dtype) == (0, np.int64)


def test_the_same_content_under_another_name_is_called_by_that_name(tmp_path):
    save(THREE, tmp_path / "key")
    loaded = load(tmp_path / "key", "other")
    assert loaded is not None
    assert (loaded.name, loaded.ledger.name) == ("other", "other")


def test_where_nothing_was_written_nothing_is_loaded(tmp_path):
    assert load(tmp_path / "key", "d") is None


def _half_written(folder):
    (folder / "dataset.json").unlink()


def _lost_array(folder):
    (folder / "lines.npy").unlink()


def _cut_array(folder):
    path = folder / "ids.npy"
    path.write_bytes(path.read_bytes()[:-1])


def _empty_array(folder):
    (folder / "ids.npy").write_bytes(b"")


def _cut_description(folder):
    path = folder / "dataset.json"
    path.write_text(path.read_text()[:-5])


@pytest.mark.parametrize("damage", [_half_written, _lost_array, _cut_array, _empty_array, _cut_description])
def test_a_damaged_folder_counts_as_none_and_is_replaced_by_the_next(tmp_path, damage):
    folder = tmp_path / "key"
    save(THREE, folder)
    damage(folder)
    assert load(folder, "d") is None
    save(THREE, folder)
    loaded = load(folder, "d")
    assert loaded is not None
    assert all_of(loaded) == all_of(THREE)


def test_a_whole_folder_that_another_process_wrote_first_is_left_as_it_is(tmp_path):
    folder = tmp_path / "key"
    save(THREE, folder)
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    save(THREE, folder)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("cause", [ValueError("a bad row"), KeyboardInterrupt()], ids=["failed", "interrupted"])
def test_what_fails_before_all_rows_are_written_leaves_nothing_behind(tmp_path, cause):
    with pytest.raises(type(cause)), new_dataset(tmp_path / "key", ledger(), "") as writer:
        writer.add(THREE.parts[0])
        raise cause
    assert list(tmp_path.iterdir()) == []


def test_a_description_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    unwritable = Ledger("d", faults=[object()])  # type: ignore[list-item]
    with pytest.raises(TypeError), new_dataset(tmp_path / "key", unwritable, "") as writer:
        writer.add(THREE.parts[0])
    assert list(tmp_path.iterdir()) == []


def test_the_cache_can_be_moved(tmp_path):
    save(THREE, tmp_path / "key")
    shutil.move(tmp_path / "key", tmp_path / "moved")
    moved = load(tmp_path / "moved", "d")
    assert moved is not None
    assert all_of(moved) == all_of(THREE)


def test_the_key_changes_with_each_part_and_not_with_their_order():
    parts = {"source": "s", "chat": {"max_length": 8, "default_system": None}, "on_bad_record": "error"}
    others = [
        {**parts, "source": "t"},
        {**parts, "chat": {"max_length": 9, "default_system": None}},
        {**parts, "chat": {"max_length": 8, "default_system": ""}},
        {**parts, "on_bad_record": "skip"},
        {**parts, "more": None},
        {key: value for key, value in parts.items() if key != "source"},
    ]
    assert len({cache_key(each) for each in [parts, *others]}) == 1 + len(others)
    assert cache_key(dict(reversed(parts.items()))) == cache_key(parts)
    assert len(cache_key(parts)) == 32


def test_the_ledger_in_the_cache_can_be_read_by_people(tmp_path):
    save(THREE, tmp_path / "key")
    described = json.loads((tmp_path / "key" / "dataset.json").read_text(encoding="utf-8"))
    assert described["ledger"]["dropped"] == {"too long": 2}
    assert "ü" in (tmp_path / "key" / "dataset.json").read_text(encoding="utf-8")


def test_from_rows_is_a_data_set_in_memory():
    rows = [TokenRow(*row) for row in THREE_ROWS]
    made = from_rows("d", rows, [(10, 0.5, 100), (11, 1.5, 101), (12, 2.5, 102)], ledger(), "digest")
    assert all_of(made) == all_of(THREE)
