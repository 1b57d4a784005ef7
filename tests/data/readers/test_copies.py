"""A file of a store is downloaded once, whole, by one process at a time, and never taken for an earlier one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.base.cache import cache_dir
from posttrain.base.files import content_digest
from posttrain.data.readers.copies import local_copy, remote_digest
from posttrain.data.readers.open import open_lines
from posttrain.data.readers.remote import RemoteFile, listed
from posttrain.errors import DataError

pytestmark = pytest.mark.extras

URL = "s3://rows/a.jsonl"
ROWS = b'{"n": 1}\n{"n": 2}\n'
READ = "import sys; from posttrain.data.readers.open import open_lines; print(open_lines(sys.argv[1], {'n'}).digest)"


def the_file() -> RemoteFile:
    listed.cache_clear()
    (file,) = listed(URL).files
    return file


def test_a_copy_is_kept_and_what_is_there_is_not_downloaded_again(store, capsys):
    store.put({"a.jsonl": ROWS})
    copy = local_copy(the_file())
    before = copy.stat()

    assert copy.read_bytes() == ROWS
    assert local_copy(the_file()).stat() == before
    assert capsys.readouterr().err.count("downloading s3://rows/a.jsonl (0.0 MiB)") == 1
    assert [each.name for each in copy.parent.iterdir()] == ["a.jsonl"]


def test_a_stopped_download_goes_on_where_it_was(store):
    store.put({"a.jsonl": ROWS})
    file = the_file()
    part = local_copy(file).with_name("a.jsonl.part")
    local_copy(file).unlink()
    part.write_bytes(b'{"n": 8}\n')  # other content than in the store, to see that it is not fetched again

    assert local_copy(file).read_bytes() == b'{"n": 8}\n{"n": 2}\n'
    assert not part.exists()


def test_a_beginning_that_is_too_long_is_not_used(store):
    store.put({"a.jsonl": ROWS})
    file = the_file()
    part = local_copy(file).with_name("a.jsonl.part")
    local_copy(file).unlink()
    part.write_bytes(ROWS + b"more")

    assert local_copy(file).read_bytes() == ROWS


def test_a_changed_file_is_told_and_only_its_new_version_is_kept(store, capsys):
    store.put({"a.jsonl": ROWS})
    first = open_lines(URL, {"n"})
    old = local_copy(the_file())
    store.put({"a.jsonl": b'{"n": 3}\n{"n": 4}\n'})  # as long as before
    listed.cache_clear()
    second = open_lines(URL, {"n"})

    assert first.digest != second.digest
    assert [line.value for line in second.lines()] == [{"n": 3}, {"n": 4}]
    assert "s3://rows/a.jsonl has changed since it was last read" in capsys.readouterr().err
    assert not old.exists()


def test_a_file_that_changes_after_it_was_listed_is_refused(store):
    store.put({"a.jsonl": ROWS})
    file = the_file()
    store.put({"a.jsonl": b'{"n": 3}\n{"n": 4}\n'})

    with pytest.raises(DataError, match=r"^s3://rows/a.jsonl was changed while it was downloaded; start again"):
        local_copy(file)

    assert not any(cache_dir().rglob("a.jsonl*"))


def test_a_removed_copy_costs_another_download_only_where_rows_are_read(store):
    store.put({"a.jsonl": ROWS})
    file = the_file()
    digest = remote_digest(file)
    copy = local_copy(file)
    copy.unlink()

    assert [remote_digest(file), copy.exists()] == [digest, False]
    assert content_digest(local_copy(file)) == digest


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_copy_with_another_checksum_than_the_store_tells_is_refused(store, kind):
    store.put({"a.jsonl": ROWS})
    file = the_file()

    with pytest.raises(DataError, match=rf"^{URL}: its {kind} checksum is 00, but that of what was downloaded"):
        local_copy(RemoteFile(file.url, file.path, file.size, file.version, (kind, "00")))

    assert not any(cache_dir().rglob("a.jsonl*"))


def test_processes_that_start_together_download_once(store):
    store.put({"a.jsonl": b'{"n": 1}\n' * 4_000_000})
    command = [sys.executable, "-c", READ, URL]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate() for process in both]

    assert [process.returncode for process in both] == [0, 0]
    assert told[0][0] == told[1][0]
    assert sum(said.count("downloading s3://rows/a.jsonl (34.3 MiB)\n") for _, said in told) == 1


def test_a_killed_download_leaves_no_file_and_the_next_one_is_whole(store):
    content = b'{"n": 1}\n' * 10_000_000
    store.put({"a.jsonl": content})
    process = subprocess.Popen([sys.executable, "-c", READ, URL], stderr=subprocess.DEVNULL)
    parts: list[Path] = []
    while not any(part.stat().st_size for part in parts) and process.poll() is None:
        time.sleep(0.005)
        parts = list((cache_dir() / "remote").glob("*/*/a.jsonl.part"))
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert not any(cache_dir().rglob("a.jsonl"))
    assert 0 < os.path.getsize(parts[0]) < len(content)
    assert local_copy(the_file()).read_bytes() == content
