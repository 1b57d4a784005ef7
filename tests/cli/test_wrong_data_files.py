"""Files that are not data, and data with too little left to train on."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

Edit = Callable[[str, str], None]
Refusal = Callable[..., str]

GOOD = b'{"prompt": "1 + 1?", "completion": "2"}\n'
BOTH_WAYS = pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])

# What is wrong: the file, its bytes, and the message; {file} is the full path.
BAD_FILES = {
    "nothing in it": ("data.jsonl", b"", "{file} holds no records"),
    "only blank lines": ("data.jsonl", b"\n \n\r\n", "{file} holds no records"),
    "an unknown ending": (
        "./data.txt",
        GOOD,
        "{file}: cannot tell the format from the name; supported: .jsonl, .ndjson, .json, .csv, .tsv (also with .gz) "
        "and .parquet",
    ),
    "an unknown way to pack": (
        "./data.jsonl.zst",
        GOOD,
        "{file} uses an unsupported compression; unpack it, or recompress it as .gz",
    ),
    "no gzip": ("data.jsonl.gz", GOOD, "{file} cannot be read to the end: Not a gzipped file"),
    "a JSON array that breaks off": ("data.json", b'[{"prompt": "q"},\n', "{file}:2: not JSON at column 1: "),
    "UTF-16": (
        "data.jsonl",
        GOOD.decode().encode("utf-16"),
        "{file} has 2 bad records and no usable one:\n  {file}:1: not UTF-8 at byte 1 (0xff); this looks like UTF-16",
    ),
    "CSV with another header": (
        "data.csv",
        b"question,completion\nq,a\n",
        "{file}:2: needs columns 'messages' or 'prompt' and 'completion', but has 'question', 'completion'",
    ),
    "CSV with one header twice": (
        "data.csv",
        b"prompt,prompt\nq,a\n",
        "{file}: the header names 'prompt' more than once",
    ),
    "CSV with a cell too many": (
        "data.csv",
        b"prompt,completion\nq,a\nq,a,b\n",
        "{file} has 1 bad record:\n  {file}:3: has 3 cells where the header has 2",
    ),
    "CSV with no rows": ("data.csv", b"prompt,completion\n", "{file} holds no records"),
    "no Parquet": ("data.parquet", b"PAR1", "{file} cannot be read as Parquet: Parquet file size is 4 bytes"),
}


@BOTH_WAYS
@pytest.mark.parametrize(("name", "data", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_that_holds_no_data_is_refused(
    name: str, data: bytes, message: str, start: list[str], folder: Path, edit_config: Edit, refusal: Refusal
):
    (folder / name).write_bytes(data)
    edit_config("words.jsonl", name)
    assert message.format(file=folder / name) in refusal("run.yaml", *start)


def test_a_bad_row_of_a_table_is_told_by_its_number(folder: Path, edit_config: Edit, refusal: Refusal):
    table = pyarrow.table({"prompt": ["q", "q", "q"], "completion": ["a", "", "c"]})
    pyarrow.parquet.write_table(table, folder / "data.parquet")
    edit_config("words.jsonl", "data.parquet")
    assert f"\n  {folder}/data.parquet row 2: completion is empty\n" in refusal("run.yaml", "--dry-run")


@BOTH_WAYS
def test_all_files_that_are_not_there_are_told_at_once_with_their_keys(
    start: list[str], folder: Path, edit_config: Edit, refusal: Refusal
):
    edit_config("", "validation: {dataset: {path: ./tiny}}")
    (folder / "words.jsonl").rename(folder / "word.jsonl")
    assert refusal("run.yaml", *start).splitlines() == [
        "2 files cannot be read:",
        f"  datasets.words.path: no such file: {folder}/words.jsonl; did you mean word.jsonl?",
        f"  validation.dataset.path: {folder}/tiny is the folder of a model, not of data",
    ]


@BOTH_WAYS
def test_a_hub_data_set_that_cannot_be_reached_is_told_by_its_name(
    start: list[str], edit_config: Edit, refusal: Refusal
):
    edit_config("words.jsonl", "nobody/nothing")
    message = refusal("run.yaml", *start)
    assert message.startswith("nobody/nothing is not a local file, and the Hugging Face hub cannot be reached: ")


# What is wrong: `chat.truncation`, the words in question and answer, and the message.
TOO_LONG = {
    "an error": ("error", 200, 1, "datasets.words: line 2: a conversation has "),
    "all dropped": ("drop", 200, 1, "datasets.words: no trained tokens remain from 3 rows (3 too long); raise "),
    "answers cut off": ("right", 200, 1, "no trained tokens remain from 3 rows (3 nothing to train)"),
    "answers without their end": ("right", 1, 200, "datasets.words: only 0.0% of the answers keep their end token "),
}


@BOTH_WAYS
@pytest.mark.parametrize(("policy", "asked", "answered", "message"), TOO_LONG.values(), ids=TOO_LONG.keys())
def test_conversations_that_are_too_long_never_leave_too_little_in_silence(
    policy: str, asked: int, answered: int, message: str, start: list[str], folder: Path, refusal: Refusal
):
    row = json.dumps({"prompt": "q " * asked, "completion": "a " * answered})
    short = "" if policy != "error" else GOOD.decode()
    (folder / "words.jsonl").write_text(short + f"{row}\n" * 3)
    assert message in refusal("run.yaml", "--set", f"chat.truncation={policy}", *start)


@BOTH_WAYS
def test_nothing_is_held_out_of_rows_that_all_say_the_same(start: list[str], folder: Path, refusal: Refusal):
    (folder / "words.jsonl").write_bytes(GOOD * 5)
    assert refusal("run.yaml", "--set", "validation={fraction: 0.2}", *start) == (
        "words: nothing can be held out of 5 rows with the same content; give validation a data set of its own"
    )


@BOTH_WAYS
def test_a_column_that_no_record_has_is_told_with_the_nearest_one(
    start: list[str], folder: Path, edit_config: Edit, refusal: Refusal
):
    (folder / "words.jsonl").write_text('{"prompt": "q", "completion": "a", "importance": 2}\n')
    edit_config("{path: words.jsonl}", "{path: words.jsonl, columns: {weight: importence}}")
    assert refusal("run.yaml", *start) == (
        f"{folder}/words.jsonl: columns.weight is 'importence', which no record has; did you mean 'importance'?"
    )


@BOTH_WAYS
def test_a_split_of_a_file_is_refused(start: list[str], folder: Path, edit_config: Edit, refusal: Refusal):
    edit_config("{path: words.jsonl}", "{path: words.jsonl, split: test}")
    assert refusal("run.yaml", *start) == (
        f"{folder}/words.jsonl: split 'test' was requested, but a file has no splits; leave it out"
    )
