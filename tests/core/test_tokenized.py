"""Data sets as flat arrays: rows, subsets, and the cache on disk."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.ledger import Ledger
from toolkit.core.tokenized import TokenizedDataset, cache_key, concatenate, load, save

ARRAYS = ("ids", "trained", "offsets", "lines", "weights", "contents")


def dataset(rows: list[tuple[list[int], list[bool]]], name: str = "d") -> TokenizedDataset:
    """Row r comes from line 10 + r, weighs r + 0.5 and has the content hash 100 + r."""
    count = len(rows)
    return TokenizedDataset(
        name=name,
        ids=np.array([id_ for ids, _ in rows for id_ in ids], dtype=np.int32),
        trained=np.array([flag for _, flags in rows for flag in flags], dtype=np.bool_),
        offsets=np.cumsum([0, *(len(ids) for ids, _ in rows)]),
        lines=np.arange(10, 10 + count),
        weights=np.arange(count, dtype=np.float32) + np.float32(0.5),
        contents=np.arange(100, 100 + count, dtype=np.uint64),
        ledger=Ledger(name, records=count, rows=count, dropped={"too long": 2}, faults=["file:3: ü"]),
        digest="digest of the file",
    )


THREE = dataset([([1, 2, 3], [False, True, True]), ([4], [False]), ([5, 6], [True, False])])


def as_lists(data: TokenizedDataset) -> dict[str, list]:
    return {key: getattr(data, key).tolist() for key in ARRAYS}


def test_a_row_is_its_ids_and_which_of_them_are_trained():
    rows = [[part.tolist() for part in THREE.row(index)] for index in range(len(THREE))]
    assert rows == [[[1, 2, 3], [False, True, True]], [[4], [False]], [[5, 6], [True, False]]]


def test_lengths_and_trained_tokens_are_counted_by_row():
    assert THREE.lengths().tolist() == [3, 1, 2]
    assert THREE.trained_counts().tolist() == [2, 0, 1]


def test_the_step_planner_gets_plain_numbers():
    sizes = THREE.sizes()
    assert (sizes.lengths, sizes.trained_counts, sizes.weights) == ([3, 1, 2], [2, 0, 1], [0.5, 1.5, 2.5])
    assert {type(value) for value in sizes.lengths} == {int}
    assert {type(value) for value in sizes.weights} == {float}


def test_a_subset_has_the_rows_asked_for_in_the_order_asked_for():
    subset = THREE.subset(np.array([2, 0]), "part")
    assert subset.name == "part"
    assert as_lists(subset) == {
        "ids": [5, 6, 1, 2, 3],
        "trained": [True, False, False, True, True],
        "offsets": [0, 2, 5],
        "lines": [12, 10],
        "weights": [2.5, 0.5],
        "contents": [102, 100],
    }


def test_a_subset_of_no_rows_is_empty():
    subset = THREE.subset(np.array([], dtype=np.int64), "none")
    assert len(subset) == 0
    assert as_lists(subset)["offsets"] == [0]
    assert subset.trained_counts().tolist() == []


def test_data_sets_are_joined_one_after_another():
    other = dataset([([7], [True]), ([8, 9], [False, True])], "e")
    joined = concatenate([THREE, other], "both")
    assert (joined.name, joined.digest, len(joined)) == ("both", THREE.digest, 5)
    assert as_lists(joined) == {
        "ids": [1, 2, 3, 4, 5, 6, 7, 8, 9],
        "trained": [False, True, True, False, True, False, True, False, True],
        "offsets": [0, 3, 4, 6, 7, 9],
        "lines": [10, 11, 12, 10, 11],
        "weights": [0.5, 1.5, 2.5, 0.5, 1.5],
        "contents": [100, 101, 102, 100, 101],
    }


ROWS = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5).map(
        lambda tokens: ([id_ for id_, _ in tokens], [flag for _, flag in tokens])
    ),
    min_size=1,
    max_size=8,
)


@given(ROWS)
def test_all_rows_in_their_order_are_the_data_set_itself(rows):
    data = dataset(rows)
    assert as_lists(data.subset(np.arange(len(data)), "d")) == as_lists(data)


@given(ROWS, st.data())
def test_any_subset_has_the_rows_that_were_asked_for(rows, draw):
    data = dataset(rows)
    wanted = draw.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    subset = data.subset(np.array(wanted, dtype=np.int64), "part")
    assert [tuple(part.tolist() for part in subset.row(at)) for at in range(len(wanted))] == [
        rows[index] for index in wanted
    ]
    assert subset.trained_counts().tolist() == [sum(rows[index][1]) for index in wanted]


@given(ROWS, st.integers(0, 8))
def test_the_two_parts_of_a_data_set_join_to_the_whole(rows, at):
    data = dataset(rows)
    numbers = np.arange(len(data))
    parts = [data.subset(numbers[:at], "one"), data.subset(numbers[at:], "two")]
    assert as_lists(concatenate(parts, "d")) == as_lists(data)


def test_what_was_saved_is_loaded_from_disk_without_being_read_into_memory(tmp_path):
    save(THREE, tmp_path / "cache" / "key")
    loaded = load(tmp_path / "cache" / "key", "d")
    assert loaded is not None
    assert as_lists(loaded) == as_lists(THREE)
    assert (loaded.name, loaded.ledger, loaded.digest) == (THREE.name, THREE.ledger, THREE.digest)
    assert all(isinstance(getattr(loaded, key), np.memmap) for key in ARRAYS)
    assert [getattr(loaded, key).dtype for key in ARRAYS] == [getattr(THREE, key).dtype for key in ARRAYS]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key"]


def test_a_data_set_of_no_rows_survives_the_cache_too(tmp_path):
    save(THREE.subset(np.array([], dtype=np.int64), "d"), tmp_path / "key")
    loaded = load(tmp_path / "key", "d")
    assert loaded is not None
    assert len(loaded) == 0


def test_the_same_content_under_another_name_is_called_by_that_name(tmp_path):
    save(THREE, tmp_path / "key")
    loaded = load(tmp_path / "key", "other")
    assert loaded is not None
    assert (loaded.name, loaded.ledger.name) == ("other", "other")


def test_where_nothing_was_saved_nothing_is_loaded(tmp_path):
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
def test_a_damaged_folder_counts_as_none_and_is_replaced_by_the_next_save(tmp_path, damage):
    folder = tmp_path / "key"
    save(THREE, folder)
    damage(folder)
    assert load(folder, "d") is None
    save(THREE, folder)
    loaded = load(folder, "d")
    assert loaded is not None
    assert as_lists(loaded) == as_lists(THREE)


def test_a_whole_folder_that_another_process_wrote_first_is_left_as_it_is(tmp_path):
    folder = tmp_path / "key"
    save(THREE, folder)
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    save(THREE, folder)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_save_that_fails_leaves_nothing_behind(tmp_path):
    unwritable = dataclasses.replace(THREE, ledger=Ledger("d", faults=[object()]))  # type: ignore[list-item]
    with pytest.raises(TypeError):
        save(unwritable, tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_the_cache_can_be_moved(tmp_path):
    save(THREE, tmp_path / "key")
    shutil.move(tmp_path / "key", tmp_path / "moved")
    moved = load(tmp_path / "moved", "d")
    assert moved is not None
    assert as_lists(moved) == as_lists(THREE)


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
