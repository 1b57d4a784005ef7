"""From files to rows: all unusable records are reported at once, each with its location."""

import codecs
import csv
import gzip
import io
import json
import os
from pathlib import Path

import pytest

from dataserver.dataserver_cases import load, make_config, questions, write_rows
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.loading import confined_data, load_datasets
from posttrain.errors import DataError

GOOD = b'{"prompt": "1 + 1?", "answer": "2"}'

# By fault: a line of a .jsonl file, and the message.
BAD_RECORDS = {
    "broken JSON": (b'{"prompt": "q"', "not JSON at column 15: Expecting ',' delimiter"),
    "an array": (b'["q", "a"]', "not a JSON object but an array"),
    "a key twice": (
        b'{"prompt": "q", "answer": "1", "answer": "2"}',
        "key 'answer' appears more than once in one object",
    ),
    "broken UTF-8": (b'{"prompt": "caf\xe9", "answer": "1"}', "not UTF-8 at byte 16 (0xe9)"),
    "a NUL": (
        b'{"prompt": "q\x00", "answer": "1"}',
        "not JSON at column 14: Invalid control character at",
    ),
    "NaN": (b'{"prompt": "q", "answer": NaN}', "NaN is not JSON; leave the value out or write null"),
    "half a character": (
        rb'{"prompt": "\ud83d", "answer": "1"}',
        "prompt[0]: content holds a lone surrogate at character 0",
    ),
    "half a character in the gold": (
        rb'{"prompt": "q", "answer": ["a", "\ud83d"]}',
        "the gold answer contains a lone surrogate, which no completion can contain",
    ),
    "no prompt": (
        b'{"question": "q", "answer": "1"}',
        "needs columns 'messages' or 'prompt', but has 'question', 'answer'; the `columns` section can rename them",
    ),
    "an empty prompt": (b'{"prompt": " ", "answer": "1"}', "prompt is empty"),
    "a number for a prompt": (b'{"prompt": 4, "answer": "1"}', "prompt must be text or a list of messages, not int"),
    "no messages": (b'{"messages": [], "answer": "1"}', "messages is an empty list"),
    "no question": (
        b'{"messages": [{"role": "system", "content": "s"}], "answer": "1"}',
        "the prompt has no user message",
    ),
    "answers alone": (
        b'{"messages": [{"role": "assistant", "content": "a"}], "answer": "1"}',
        "the prompt has no user message",
    ),
    "no gold": (
        b'{"prompt": "q"}',
        "there is no gold answer: 'answer' is missing or null; set gold.column to the right column, or gold: null if "
        "no grader needs one",
    ),
    "a gold that is null": (
        b'{"prompt": "q", "answer": null}',
        "there is no gold answer: 'answer' is missing or null; set gold.column to the right column, or gold: null if "
        "no grader needs one",
    ),
    "an empty gold": (
        b'{"prompt": "q", "answer": " "}',
        "there is no gold answer: gold.extract finds nothing in 'answer'",
    ),
}


@pytest.mark.parametrize(("line", "fault"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_a_bad_record_is_told_with_its_file_and_line_and_the_way_out(line: bytes, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)
    with pytest.raises(DataError) as error:
        load(file)
    assert str(error.value).splitlines() == [
        f"{file} has 1 bad record:",
        f"  {file}:2: {fault}",
        "correct them, or skip them with on_bad_record: skip",
    ]


def test_bad_records_of_all_data_sets_are_told_at_once(tmp_path: Path) -> None:
    lines = [line for line, _ in BAD_RECORDS.values()]
    (tmp_path / "sums.jsonl").write_bytes(b"\n".join([GOOD, *lines]))
    write_rows(tmp_path / "words.jsonl", [{"prompt": "q", "answer": "It is so."}, {"prompt": "r", "answer": "#### 4"}])
    datasets = {"sums": {}, "words": {"gold": {"extract": {"after": "####"}}}, "none": {}}
    with pytest.raises(DataError) as error:
        load_datasets(make_config(tmp_path, datasets), lambda line: None)
    told = str(error.value).splitlines()
    assert told[0] == f"datasets.sums: {tmp_path}/sums.jsonl has 17 bad records:"
    assert told[1:18] == [
        f"  {tmp_path}/sums.jsonl:{number}: {fault}" for number, (_, fault) in enumerate(BAD_RECORDS.values(), start=2)
    ]
    assert told[19:] == [
        f"datasets.words: {tmp_path}/words.jsonl has 1 bad record:",
        f"  {tmp_path}/words.jsonl:1: there is no gold answer: gold.extract finds nothing in 'answer'",
        "correct them, or skip them with on_bad_record: skip",
        f"datasets.none: no such file: {tmp_path}/none.jsonl",
    ]


def test_bad_records_are_left_out_and_known_by_their_place_where_the_config_says_so(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_bytes(b"{}\n" + GOOD + b"\n\n[]\n" + GOOD)
    rows = load(file, "skip")
    assert [rows.place(index) for index in range(len(rows))] == [f"{file}:2", f"{file}:5"]
    assert [fault.split(": ")[0] for fault in rows.faults] == [f"{file}:1", f"{file}:4"]


def test_what_was_left_out_is_told_by_the_name_that_the_file_has_now(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_bytes(b"[]\n" + GOOD)
    load(tmp_path / "old.jsonl", "skip")
    (tmp_path / "old.jsonl").rename(tmp_path / "new.jsonl")
    assert load(tmp_path / "new.jsonl", "skip").faults == [f"{tmp_path}/new.jsonl:1: not a JSON object but an array"]


@pytest.mark.parametrize("content", [b"{}\n", b"", b"\n\n"])
def test_a_file_without_a_usable_record_is_refused_also_where_bad_ones_are_left_out(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "sums.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"and no usable one|holds no records"):
        load(tmp_path / "sums.jsonl", "skip")


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_bytes(GOOD + b"\n" + GOOD + b"\n")
    (tmp_path / "windows.jsonl").write_bytes(codecs.BOM_UTF8 + GOOD + b"\r\n" + GOOD + b"\r\n")
    plain, windows = load(tmp_path / "plain.jsonl"), load(tmp_path / "windows.jsonl")
    assert [windows.read(index) for index in range(2)] == [plain.read(index) for index in range(2)]


RECORD = {"prompt": "1 + 1?", "answer": "2", "level": "3", "source": "ünï\u2028code"}


def test_every_kind_of_file_keeps_every_column(tmp_path: Path) -> None:
    from datasets import Dataset

    cells = io.StringIO()
    table = csv.DictWriter(cells, RECORD)
    table.writeheader()
    table.writerow(RECORD)
    (tmp_path / "rows.csv").write_text(cells.getvalue())
    (tmp_path / "rows.tsv").write_text("\t".join(RECORD) + "\n" + "\t".join(RECORD.values()) + "\n")
    (tmp_path / "rows.json.gz").write_bytes(gzip.compress(json.dumps([RECORD]).encode()))
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(json.dumps(RECORD).encode()))
    Dataset.from_list([RECORD]).to_parquet(tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.tsv", "rows.json.gz", "rows.jsonl.gz", "rows.parquet"):
        # The gold comes from a column that nothing else names.
        assert load(tmp_path / name, gold={"column": "level"}).read(0).record == RECORD, name


def test_a_date_in_a_column_of_a_table_that_nobody_reads_does_no_harm(tmp_path: Path) -> None:
    from datetime import datetime

    from datasets import Dataset

    Dataset.from_list([{**RECORD, "made": datetime(2024, 5, 31)}]).to_parquet(tmp_path / "rows.parquet")
    assert load(tmp_path / "rows.parquet").read(0).record == {**RECORD, "made": "2024-05-31 00:00:00"}


def test_a_bad_row_of_a_table_is_told_by_its_number(tmp_path: Path) -> None:
    from datasets import Dataset

    file = tmp_path / "rows.parquet"
    Dataset.from_list([RECORD, {**RECORD, "prompt": ""}]).to_parquet(file)
    with pytest.raises(DataError, match=f"{file} row 2: prompt is empty"):
        load(file)


def test_other_columns_may_hold_half_a_character(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(rb'{"prompt": "q", "answer": "1", "source": "\ud800", "\udfff": 1}')
    row = load(tmp_path / "rows.jsonl").read(0)
    assert row.record == {"prompt": "q", "answer": "1", "source": "\ud800", "\udfff": 1}


def test_a_packed_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in questions("sums", 2000)))
    (tmp_path / "rows.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"rows.jsonl.gz cannot be read to the end"):
        load(tmp_path / "rows.jsonl.gz")


def test_the_same_bytes_read_in_another_way_are_other_rows(tmp_path: Path) -> None:
    # Read as JSON Lines, only the last element of this array is a record.
    content = b'[\n{"prompt": "1", "answer": "1"},\n{"prompt": "2", "answer": "2"}\n]'
    for name in ("rows.jsonl.gz", "rows.json.gz"):
        (tmp_path / name).write_bytes(gzip.compress(content, mtime=0))
    assert len(load(tmp_path / "rows.jsonl.gz", "skip")) == 1
    assert len(load(tmp_path / "rows.json.gz", "skip")) == 2


LENGTHS = [5, 30, 10, 20, 40]


def prompts_of(tmp_path: Path) -> Path:
    rows = [{"prompt": "q" * length, "answer": "1"} for length in LENGTHS]
    return write_rows(tmp_path / "long.jsonl", rows)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, LENGTHS),
        ({"max_prompt_chars": 20}, [5, 10, 20]),
        # 60 % of five prompts is three; the longest of those has 20 characters.
        ({"max_prompt_percentile": 60}, [5, 10, 20]),
        ({"max_prompt_percentile": 61}, [5, 30, 10, 20]),
        ({"max_prompt_percentile": 61, "max_prompt_chars": 15}, [5, 10]),
    ],
)
def test_prompts_that_are_too_long_are_left_out_and_counted_each_time_the_file_is_opened(
    tmp_path: Path, limits: dict[str, float], kept: list[int]
):
    file = prompts_of(tmp_path)
    for said in (list[str](), list[str]()):
        rows = load(file, report=said.append, **limits)
        assert [len(rows.read(index).record["prompt"]) for index in range(len(rows))] == kept
        left_out = len(LENGTHS) - len(kept)
        assert rows.too_long == left_out
        told = f"{file}: rows left out because their prompts are too long: {left_out}"
        assert [line for line in said if "left out" in line] == [told] * bool(left_out)
    assert [rows.place(index) for index in range(len(rows))] == [
        f"{file}:{LENGTHS.index(length) + 1}" for length in kept
    ]


def test_a_limit_that_leaves_nothing_is_refused_with_the_length_of_the_shortest_prompt(tmp_path: Path):
    with pytest.raises(DataError, match="max_prompt_chars: 4 excludes every row; the shortest prompt has 5 char"):
        load(prompts_of(tmp_path), max_prompt_chars=4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "inner").mkdir(parents=True)
    for file in (tmp_path / "secret.jsonl", root / "rows.jsonl", root / "inner" / "rows.jsonl"):
        file.write_text("{}")
    return root


@pytest.mark.parametrize("path", ["rows.jsonl", "./rows.jsonl", "inner/../rows.jsonl", "inner/rows.jsonl"])
def test_a_file_inside_is_found(path: str, root: Path) -> None:
    assert confined_data(root, FileDataset(path=path, graders={"x": 1}).path).samefile(root / path)


@pytest.mark.parametrize("name", ["..rows.jsonl", "....jsonl", "a~b.jsonl", "rows jsonl.jsonl", "-.jsonl"])
def test_an_odd_name_is_no_way_out(name: str, root: Path) -> None:
    (root / name).write_text("{}")
    assert confined_data(root, FileDataset(path=name, graders={"x": 1}).path) == root / name


def test_a_link_that_stays_inside_is_followed(root: Path) -> None:
    (root / "link.jsonl").symlink_to("inner/rows.jsonl")
    assert confined_data(root, "link.jsonl").read_text() == "{}"


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert confined_data(tmp_path / "link", "rows.jsonl").is_file()


@pytest.mark.parametrize("target", ["../secret.jsonl", "../data/../secret.jsonl", "/etc/hostname"])
@pytest.mark.parametrize("path", ["link.jsonl", "inner/link.jsonl", "folder/secret.jsonl"])
def test_a_link_that_leads_out_is_refused(path: str, target: str, root: Path) -> None:
    (root / "folder").symlink_to("..")
    (root / "link.jsonl").symlink_to(target)
    (root / "inner" / "link.jsonl").symlink_to("../link.jsonl")
    with pytest.raises(DataError, match="data are read only from inside it"):
        confined_data(root, path)


def test_a_folder_whose_name_begins_like_the_root_is_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "data2").mkdir()
    (tmp_path / "data2" / "rows.jsonl").write_text("{}")
    (root / "link.jsonl").symlink_to("../data2/rows.jsonl")
    with pytest.raises(DataError, match="outside data_root"):
        confined_data(root, "link.jsonl")


def test_a_folder_and_a_pattern_stay_inside_too(root: Path, tmp_path: Path) -> None:
    for path in ("inner", "inn*/*.jsonl", "."):
        assert confined_data(root, path) == root / path
    (root / "inner" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    for path in ("inner", "inn*/*.jsonl", "."):
        with pytest.raises(DataError, match="outside data_root"):
            confined_data(root, path)


def test_what_is_no_file_is_refused(root: Path) -> None:
    os.mkfifo(root / "pipe.jsonl")
    (root / "ring.jsonl").symlink_to("ring.jsonl")
    for path, reason in {
        "none.jsonl": "no such file",
        "pipe.jsonl": "is a pipe or a device",
        "ring.jsonl": "cannot read|no such file",
        "n" * 300: "File name too long",
        "rows.jsonl/rows.jsonl": "cannot read|no such file",
    }.items():
        with pytest.raises(DataError, match=reason):
            confined_data(root, path)
