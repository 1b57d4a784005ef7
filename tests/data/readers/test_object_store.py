"""Files in a store are read as the same files on this machine: by address, in order, named by their addresses."""

import gzip
import io
from pathlib import Path

import pytest

from posttrain.data.readers.data_files import find_remote
from posttrain.data.readers.open import open_lines, place_in
from posttrain.errors import DataError

pytestmark = pytest.mark.extras

SHARDS = {
    "chats/part-1.jsonl": b'{"n": 1}\n\n{"n": 2}\n',
    "chats/part-2.jsonl.gz": gzip.compress(b'{"n": 3}\n'),
    "chats/part-3.csv": b"n\n4\n",
}


def numbers(name: str) -> list[object]:
    return [line.value and line.value["n"] for line in open_lines(name, {"n"}).lines()]


def test_a_folder_in_a_store_is_the_same_data_as_its_copy_on_this_machine(store, tmp_path):
    store.put({**SHARDS, "chats/README.md": b"what this is", "chats/.hidden.jsonl": b'{"n": 9}\n', "chats/": b""})
    for name, content in SHARDS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    here, there = open_lines(tmp_path / "chats", {"n"}), open_lines("s3://rows/chats", {"n"})

    assert there.digest == here.digest
    assert list(there.lines()) == list(here.lines())
    assert numbers("s3://rows/chats") == [1, 2, 3, "4"]
    assert [next(iter(there.head())), there.name] == [{"n": 1}, "s3://rows/chats"]
    assert there.note == "s3://rows/chats: 3 files, in the order of their names; not read: README.md"


def test_a_pattern_matches_files_in_a_store(store):
    store.put({**SHARDS, "chats/deep/part-9.jsonl": b'{"n": 9}\n'})

    assert numbers("s3://rows/chats/*.jsonl*") == [1, 2, 3]
    assert numbers("s3://rows/chats/**/*.jsonl") == [9, 1, 2]
    assert [file.url for file in find_remote("s3://rows/*/part-?.csv").files] == ["s3://rows/chats/part-3.csv"]


def test_parquet_in_many_shards_is_read_in_order(store):
    import pyarrow
    from pyarrow.parquet import write_table

    for shard in range(3):
        written = io.BytesIO()
        write_table(pyarrow.table({"n": [2 * shard, 2 * shard + 1]}), written)
        store.put({f"table/{shard}.parquet": written.getvalue()})

    assert numbers("s3://rows/table/*.parquet") == [0, 1, 2, 3, 4, 5]
    assert open_lines("s3://rows/table", {"n"}).place(4) == "s3://rows/table/1.parquet row 2"


def test_a_path_that_has_lost_a_slash_is_still_an_address(store):
    store.put(SHARDS)
    path = Path("s3://rows/chats/part-1.jsonl")

    assert str(path) == "s3:/rows/chats/part-1.jsonl"
    assert open_lines(path, {"n"}).name == "s3://rows/chats/part-1.jsonl"
    assert place_in(path, 2) == "s3://rows/chats/part-1.jsonl:2"


def test_messages_name_the_address_and_not_the_copy(store):
    store.put({**SHARDS, "bad/half.jsonl.gz": gzip.compress(b'{"n": 1}\n' * 1000)[:-20], "bad/rows.json": b'[{"n": 1]'})

    assert place_in("s3://rows/chats", 4) == "s3://rows/chats/part-2.jsonl.gz:1"
    assert place_in("s3://rows/chats/part-1.jsonl", 3) == "s3://rows/chats/part-1.jsonl:3"
    with pytest.raises(DataError, match=r"^s3://rows/bad/half.jsonl.gz cannot be read to the end"):
        numbers("s3://rows/bad/half.jsonl.gz")
    with pytest.raises(DataError, match=r"^s3://rows/bad/rows.json:1: not JSON"):
        numbers("s3://rows/bad/rows.json")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://rows/none.jsonl", "s3://rows/none.jsonl: the store has no such file"),
        ("s3://rows/none*.jsonl", "s3://rows/none*.jsonl: the store has no such file"),
        ("s3://no-bucket/a.jsonl", "s3://no-bucket/a.jsonl: the store has no such file: The specified bucket does not"),
        ("s3://rows/model.bin", "s3://rows/model.bin: cannot tell the format from the name"),
        ("s3://rows/folder", "s3://rows/folder is a folder without data files"),
    ],
)
def test_what_is_not_there_is_one_message(store, address, message):
    store.put({"model.bin": b"0", "folder/model.bin": b"0"})

    with pytest.raises(DataError) as raised:
        open_lines(address, None)

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_split_of_a_file_is_refused(store):
    store.put(SHARDS)

    with pytest.raises(DataError, match=r"^s3://rows/chats: split 'test' was requested, but a file has no splits"):
        open_lines("s3://rows/chats", None, "test")
