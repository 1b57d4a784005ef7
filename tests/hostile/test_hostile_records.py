"""Untrusted rows are each read, or skipped with their location and a readable reason."""

import functools
import json
import os
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dataserver.serving import a_config
from hostile.hostile_values import (
    ODD_JSON,
    ODD_TEXTS,
    json_objects,
    json_values,
    plain_values,
    profiles,
    refusal_of,
    require_readable,
    texts,
    tried,
)
from posttrain.config.load import load_config
from posttrain.config.sections.datasets import ColumnsConfig
from posttrain.data.records import Columns
from posttrain.data.sources import ExampleStream, open_data
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.loading import load_rows
from posttrain.dataserver.offline.completions import CompletionFile
from posttrain.dataserver.runtime import Loaded
from posttrain.dpo.config.data import AnyPreferences, LabelledAnswers, PairsDataset, TwoFilesDataset
from posttrain.dpo.preferences import open_preferences
from posttrain.predict.inputs import read_inputs


class Read(NamedTuple):
    """How the rows of a file were read."""

    usable: int
    faults: Sequence[str]
    left_out: int


def as_sft(path: Path) -> Read:
    found = open_data(path, Columns()).read("skip", require_answer=True)
    return Read(len(found.records), found.faults, len(found.faults))


def as_prompts(path: Path) -> Read:
    found = read_inputs([path], ColumnsConfig(), "skip")
    return Read(len(found.rows), found.faults, len(found.faults))


def as_preferences(config: AnyPreferences) -> Read:
    stream = ExampleStream(open_preferences(config), "skip", "drop")
    return Read(len(list(stream)), stream.bad.shown, stream.bad.count + stream.useless.total())


def as_pairs(path: Path) -> Read:
    return as_preferences(PairsDataset(path=str(path)))


def as_two_files(path: Path) -> Read:
    return as_preferences(TwoFilesDataset(type="two_files", accepted=str(path), rejected=str(path)))


def as_labelled(path: Path) -> Read:
    return as_preferences(LabelledAnswers(type="labelled", path=str(path)))


def as_graded(path: Path) -> Read:
    dataset = FileDataset(path=path.name, graders={"string_exact": 1.0})
    rows = load_rows(dataset, path.parent, "skip", lambda _: None)
    for index in range(len(rows)):
        rows.read(index)
    return Read(len(rows), rows.faults, len(rows.faults))


@functools.cache
def loaded(folder: Path) -> Loaded:
    """The datasets of a dataserver config in that folder."""
    config = load_config(a_config(folder), DataserverConfig, ["on_bad_record=skip"])
    return Loaded.read(config, lambda _: None)


def as_completions(path: Path) -> Read:
    completions = CompletionFile(path, loaded(path.parent / "config"), 0)
    usable = sum(1 for _ in completions)
    return Read(usable, completions.first_faults, completions.fault_count)


READERS: dict[str, Callable[[Path], Read]] = {
    "conversations": as_sft,
    "prompts": as_prompts,
    "pairs": as_pairs,
    "two files": as_two_files,
    "labelled answers": as_labelled,
    "graded rows": as_graded,
    "completions": as_completions,
}
EACH_KIND = pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())

KEYS = [
    "sample_id",
    "dataset",
    "line",
    "iteration",
    "tokens",
    "truncated",
    "messages",
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "label",
    "weight",
    "tools",
    "system",
    "answer",
    "text",
]
MESSAGE_KEYS = ["role", "content", "name", "reasoning", "reasoning_content", "tool_calls", "train", "weight"]
roles = st.sampled_from(['"user"', '"assistant"', '"system"', '"tool"', '"\\u001b[31m"', "7", "null"])
contents = st.sampled_from(ODD_TEXTS).map(json.dumps) | json_values
calls = json_objects(["function", "name", "arguments", "type"]) | json_values
messages = st.builds(
    lambda role, content, more: f'{{"role": {role}, "content": {content}{more}}}',
    roles,
    contents,
    st.just("") | st.builds(lambda key, value: f', "{key}": {value}', st.sampled_from(MESSAGE_KEYS), calls),
)
conversations = st.lists(messages, max_size=3).map(lambda turns: f"[{', '.join(turns)}]")
fields = conversations | contents
rows = st.dictionaries(st.sampled_from(KEYS), fields, max_size=4).map(
    lambda row: "{" + ", ".join(f'"{key}": {value}' for key, value in row.items()) + "}"
)
lines = (rows | json_objects(KEYS) | json_values | st.sampled_from(ODD_JSON)).filter(lambda line: "\n" not in line)

GOOD = {
    "messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}],
    "prompt": "1 + 1?",
    "chosen": "2",
    "rejected": "3",
    "label": True,
    "answer": "2",
    "completion": "2",
    "dataset": "sums",
    "line": 1,
}


def require_every_row_told(reader: Callable[[Path], Read], path: Path, count: int | None) -> None:
    """Check that the file is refused, or that each of its rows is usable or skipped, and that faults give a location.

    A `count` of None leaves the number of rows unchecked.
    """
    found: list[Read] = []
    message = refusal_of(lambda: found.append(reader(path)))
    if message is not None:
        assert path.name in message
        return
    if count is not None:
        assert found[0].usable + found[0].left_out == count
    for fault in found[0].faults:
        require_readable(fault)
        assert f"{path.name}:" in fault or f"{path.name} row " in fault


@EACH_KIND
@profiles(quick=60, long=400)
def test_any_row_is_read_or_left_out_with_its_place(reader: Callable[[Path], Read], examples: int, tmp_path: Path):
    path = tmp_path / "rows.jsonl"

    @tried(examples)
    @given(st.lists(lines, min_size=1, max_size=6))
    def check(written: list[str]) -> None:
        written = [json.dumps(GOOD), *written]
        path.write_bytes("\n".join(written).encode("utf-8", "surrogatepass"))
        # `as_two_files` reads the same file twice: identical answers are counted, not reported.
        require_every_row_told(reader, path, sum(bool(line.strip(" \t\r")) for line in written))

    check()


@EACH_KIND
@pytest.mark.parametrize("ending", [".json", ".csv", ".tsv", ".jsonl.gz"])
@profiles(quick=25, long=150)
def test_any_file_is_read_or_refused(reader: Callable[[Path], Read], ending: str, examples: int, tmp_path: Path):
    path = tmp_path / f"rows{ending}"
    some = st.lists(lines, max_size=4)
    arrays = some.map(lambda each: f"[{', '.join(each)}]".encode("utf-8", "surrogatepass"))
    cells = st.lists(st.sampled_from(KEYS) | texts, min_size=1, max_size=4)
    tables = st.lists(cells, max_size=4).map(
        lambda table: "\n".join(",".join(cells) for cells in table).encode("utf-8", "surrogatepass")
    )
    quoted = some.map(lambda each: b'prompt,completion\n"' + '","'.join(each).encode("utf-8", "surrogatepass") + b'"')

    @tried(examples)
    @given(arrays | tables | quoted | st.binary(max_size=60))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        require_every_row_told(reader, path, None)

    check()


# Values of each kind of Parquet cell; some have no Python equivalent.
CELLS = {
    "text that is no UTF-8": lambda: pyarrow.StringArray.from_buffers(
        2, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pyarrow.py_buffer(b"ok\xff\xfe")
    ),
    "times beyond all calendars": lambda: pyarrow.array([2**62, -(2**62)], pyarrow.timestamp("ms")),
    "days beyond all calendars": lambda: pyarrow.array([2**31 - 1, -(2**31)], pyarrow.int32()).cast(pyarrow.date32()),
    "durations": lambda: pyarrow.array([2**62, 1], pyarrow.duration("s")),
    "decimals": lambda: pyarrow.array([Decimal(10**30), None], pyarrow.decimal128(38, 2)),
    "bytes": lambda: pyarrow.array([b"\xff\xfe", b""]),
    "numbers that are none": lambda: pyarrow.array([float("nan"), float("inf")]),
    "lists in lists": lambda: pyarrow.array([[[["x"]]], None]),
    "texts that steer": lambda: pyarrow.array(["\x1b[31m", "\u202e"]),
    "nothing": lambda: pyarrow.nulls(2),
    "maps": lambda: pyarrow.array([[("a", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    "words by number": lambda: pyarrow.array(["a", "b"]).dictionary_encode(),
    "objects": lambda: pyarrow.array([{"role": "user", "content": "x"}, {"role": None, "content": "y"}]),
    "messages": lambda: pyarrow.array([[{"role": "user", "content": "x"}], [{"role": "\x1b", "content": None}]]),
}


TABLES = {kind: READERS[kind] for kind in ("conversations", "pairs", "graded rows")}


@pytest.mark.parametrize("reader", TABLES.values(), ids=TABLES.keys())
@pytest.mark.parametrize("cells", CELLS.values(), ids=CELLS.keys())
@pytest.mark.parametrize(
    "columns",
    [["messages"], pytest.param(["prompt", "chosen", "weight", "tools", "answer", "x"], marks=pytest.mark.long)],
    ids=["quick", "long"],
)
def test_any_cell_of_a_table_is_read_or_told(
    reader: Callable[[Path], Read], cells: Callable[[], Any], columns: list[str], tmp_path: Path
):
    right = {name: pyarrow.array([value, value]) for name, value in GOOD.items()}
    for column in columns:
        path = tmp_path / f"{column}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({**right, column: cells()}), path)
        require_every_row_told(reader, path, 2)


@pytest.mark.parametrize("reader", TABLES.values(), ids=TABLES.keys())
@profiles(quick=10, long=80)
def test_a_parquet_file_with_wrong_bytes_is_read_or_refused(
    reader: Callable[[Path], Read], examples: int, tmp_path: Path
):
    path = tmp_path / "rows.parquet"
    columns = {name: [value, value] for name, value in GOOD.items()}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    right = path.read_bytes()

    @tried(examples)
    @given(st.integers(4, len(right) - 1), st.binary(min_size=1, max_size=4), st.booleans())
    def check(at: int, wrong: bytes, cut: bool) -> None:
        damaged = right[:at] + wrong + (b"" if cut else right[at + len(wrong) :])
        assume(damaged != right)
        path.write_bytes(damaged)
        require_every_row_told(reader, path, None)

    check()


ENCODINGS = {
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "UTF-8 with a mark": lambda text: text.encode("utf-8-sig"),
    "carriage returns alone": lambda text: text.replace("\n", "\r").encode(),
    "both line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "NUL bytes between lines": lambda text: text.replace("\n", "\0\n\0").encode(),
    "a tail of NUL bytes": lambda text: text.encode() + b"\0" * 5000,
    "Latin-1": lambda text: text.replace("2", "é").encode("latin-1"),
}


@EACH_KIND
@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS.keys())
def test_other_encodings_are_read_or_told(
    reader: Callable[[Path], Read], encode: Callable[[str], bytes], tmp_path: Path
):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(encode(f"{json.dumps(GOOD)}\n" * 3))
    require_every_row_told(reader, path, None)


def test_a_header_is_never_quoted_as_a_whole(tmp_path: Path):
    (tmp_path / "rows.csv").write_text(f"{'x' * 5000},{'x' * 5000}\n1,2\n")
    message = refusal_of(lambda: as_sft(tmp_path / "rows.csv"))
    assert message is not None and message.endswith("x... more than once")


def test_a_name_that_steers_the_terminal_is_told_without_doing_so(tmp_path: Path):
    path = tmp_path / "\x1b[31m\u202erows.jsonl"
    path.write_text("{}\n")
    message = refusal_of(lambda: as_sft(path))
    assert message is not None and "\\x1b[31m\\u202erows.jsonl:1: needs columns 'messages'" in message
    os.unlink(path)
    assert refusal_of(lambda: as_sft(path)) == f"no such file: {tmp_path}/\\x1b[31m\\u202erows.jsonl"


@profiles(quick=100, long=400)
def test_what_a_row_says_is_never_a_template_or_a_command(examples: int, tmp_path: Path):
    path = tmp_path / "rows.jsonl"

    @tried(examples)
    @given(plain_values, st.sampled_from(ODD_TEXTS))
    def check(value: Any, text: str) -> None:
        assume(text.strip() and text.isprintable())
        path.write_text(json.dumps({"prompt": text, "completion": "2", text: value}))
        (record,) = open_data(path, Columns()).read("error", require_answer=True).records
        assert record.conversation.messages[0].content == text

    check()
