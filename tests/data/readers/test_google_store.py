"""Files in Google's storage, from an emulator on this machine that speaks its protocol."""

import hashlib
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from posttrain.data.readers.copies import local_copy
from posttrain.data.readers.open import open_lines
from posttrain.data.readers.remote import listed
from posttrain.errors import DataError

pytestmark = pytest.mark.extras


@pytest.fixture
def put(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, bytes], None]]:
    """`put(name, content)` writes a file to the bucket `rows` of an empty store."""
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="rows")
    server.start()
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    listed.cache_clear()

    def write(name: str, content: bytes) -> None:
        place = f"{address}/upload/storage/v1/b/rows/o?uploadType=media&name={urllib.parse.quote(name, safe='')}"
        kind = {"Content-Type": "application/octet-stream"}
        urllib.request.urlopen(urllib.request.Request(place, data=content, headers=kind, method="POST")).close()

    yield write
    server.stop()


def test_a_folder_of_shards_is_read_in_order_and_its_copies_have_the_checksums_that_the_store_tells(put):
    put("a/2.jsonl", b'{"n": 2}\n{"n": 3}\n')
    put("a/1.jsonl", b'{"n": 1}\n')
    source = open_lines("gs://rows/a", {"n"})
    first, _ = listed("gs://rows/a").files

    assert [line.value for line in source.lines()] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert source.place(3) == "gs://rows/a/2.jsonl:2"
    assert first.checksum == ("md5", hashlib.md5(b'{"n": 1}\n').hexdigest())
    assert local_copy(first).read_bytes() == b'{"n": 1}\n'
    assert [file.url for file in listed("gs://rows/*/1.jsonl").files] == ["gs://rows/a/1.jsonl"]


def test_a_changed_file_is_told_and_read_anew(put, capsys):
    put("a.jsonl", b'{"n": 1}\n')
    before = open_lines("gs://rows/a.jsonl", {"n"}).digest
    put("a.jsonl", b'{"n": 2}\n')
    listed.cache_clear()

    assert open_lines("gs://rows/a.jsonl", {"n"}).digest != before
    assert "gs://rows/a.jsonl has changed since it was last read" in capsys.readouterr().err


def test_a_missing_file_is_one_message(put):
    with pytest.raises(DataError, match=r"^gs://rows/none.jsonl: the store has no such file"):
        open_lines("gs://rows/none.jsonl", None)
