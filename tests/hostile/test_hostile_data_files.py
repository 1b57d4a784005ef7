"""Data paths that are not regular files, or hold one endless line, are refused quickly and with little memory."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile.hostile_values import refusal_of, require_readable
from posttrain.data.readers.json_lines import MAX_LINE_BYTES, MAX_WHOLE_BYTES
from posttrain.data.records import Columns
from posttrain.data.sources import open_data

PROGRAM = Path(__file__).with_name("read_file.py")
MIB = 2**20


def with_a_hole(path: Path, begin: bytes, size: int) -> Path:
    """A sparse file that starts with `begin` and continues with zeros."""
    path.write_bytes(begin)
    os.truncate(path, size)
    assert path.stat().st_blocks * 512 < MIB
    return path


def packed(path: Path, begin: bytes, size: int) -> Path:
    """The same, gzipped to about a thousandth of its size."""
    with gzip.open(path, "wb", compresslevel=6) as file:
        file.write(begin)
        for _ in range(size // MIB):
            file.write(bytes(MIB))
    assert path.stat().st_size < size // 500
    return path


LINE = f"longer than {MAX_LINE_BYTES} bytes"
ARRAY = f"is larger than {MAX_WHOLE_BYTES // MIB} MiB, and an array is read as a whole; write one object per line"
# How each file begins, and part of the message.
ENDLESS = {
    "hole.jsonl": (b"", LINE),
    "quote.jsonl": (b'{"prompt": "', LINE),
    "object.json": (b'{"prompt": "', LINE),
    "array.json": (b'[{"prompt": "', ARRAY),
    "quote.csv": (b'prompt,completion\n"', LINE),
    "header.tsv": (b"prompt\t", LINE),
    "hole.parquet": (b"PAR1", "cannot be read as Parquet"),
    "packed.jsonl.gz": (b'{"prompt": "', LINE),
    "packed.csv.gz": (b'prompt,completion\n"', LINE),
    "packed.json.gz": (b"[" + b" " * 9, ARRAY),
}
# A line is read up to its limit and may be copied once; a compressed array is read up to the array's limit.
MOST_BYTES = int(2.5 * MAX_LINE_BYTES)
QUICK = [
    pytest.param(name, 640 * MIB if name == "array.json" else 192 * MIB, MOST_BYTES, id=name)
    for name in ENDLESS
    if name != "packed.json.gz"
]
LONG = [
    pytest.param(name, size, most, id=f"{name}-{size // MIB}", marks=pytest.mark.long)
    for name, size, most in (
        ("hole.jsonl", 2048 * MIB, MOST_BYTES),
        ("quote.csv", 1024 * MIB, MOST_BYTES),
        ("array.json", 2048 * MIB, MOST_BYTES),
        ("packed.json.gz", 640 * MIB, int(2.5 * MAX_WHOLE_BYTES)),
    )
]


@pytest.mark.parametrize(("name", "size", "most_bytes"), [*QUICK, *LONG])
def test_a_line_without_an_end_is_refused_by_a_limit_and_never_held(
    name: str, size: int, most_bytes: int, tmp_path: Path
):
    begin, message = ENDLESS[name]
    make = packed if name.endswith(".gz") else with_a_hole
    # A small file is read first, so that importing the table libraries does not count.
    small = with_a_hole(tmp_path / f"small.{name.partition('.')[2]}", b"", 100)
    command = [sys.executable, PROGRAM, small, make(tmp_path / name, begin, size)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    told = json.loads(ended.stdout.splitlines()[-1])
    require_readable(told["message"])
    assert name in told["message"] and message in told["message"]
    assert told["bytes"] < most_bytes
    assert told["seconds"] < 60


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


PIPE = "is a pipe or a device, not a file; write the data to a file first"
# How each is created, and part of the message.
NO_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe": (a_pipe, PIPE),
    "a link to a device without an end": (a_link_to("/dev/zero"), PIPE),
    "a link to an empty device": (a_link_to("/dev/null"), PIPE),
    "a link to the standard input": (a_link_to("/dev/stdin"), PIPE),
    "a link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "a link to nothing": (a_link_to("gone"), "no such file"),
    "a folder": (lambda path: path.mkdir(), "is a folder without data files"),
    "a file of the system that cannot be read": (a_link_to("/proc/self/mem"), "Input/output error"),
    "a file of the system without records": (a_link_to("/proc/self/status"), "bad records"),
    "a file of the system in binary": (a_link_to("/proc/self/auxv"), "bad record"),
}


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz"])
@pytest.mark.parametrize(("make", "message"), NO_FILES.values(), ids=NO_FILES.keys())
def test_what_is_no_data_file_is_refused_and_never_waited_for(
    make: Callable[[Path], None], message: str, ending: str, tmp_path: Path, silent_stdin: None
):
    path = tmp_path / f"data{ending}"
    make(path)
    told = refusal_of(lambda: open_data(path, Columns()).read("error", require_answer=True))
    assert told is not None and path.name in told
    if "of the system" not in message and not (path.is_file() and ending != ".jsonl"):
        assert message in told


@pytest.fixture
def silent_stdin(monkeypatch: pytest.MonkeyPatch):
    """Make standard input a pipe that stays open and silent."""
    reading, writing = os.pipe()
    kept = os.dup(0)
    os.dup2(reading, 0)
    yield
    os.dup2(kept, 0)
    for descriptor in (kept, reading, writing):
        os.close(descriptor)
