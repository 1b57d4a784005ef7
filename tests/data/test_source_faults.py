"""Bad records and bad sources, reported with their location."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.records import Columns
from posttrain.data.sources import open_data
from posttrain.errors import DataError

PAIR = {"prompt": "q", "completion": "a"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(source, columns=None, *, require_answer=True, on_bad_record="error", split="train"):
    return open_data(source, columns or Columns(), split).read(on_bad_record, require_answer=require_answer)


def test_all_bad_records_are_told_at_once_with_their_places(folder):
    lines = [json.dumps(PAIR), "{", "", json.dumps({"prompt": "q"}), json.dumps(PAIR), '{"messages": []}']
    (folder / "data.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError) as caught:
        read("data.jsonl")
    head, *faults, advice = str(caught.value).splitlines()
    assert head == "data.jsonl has 3 bad records:"
    assert faults == [
        "  data.jsonl:2: not JSON at column 2: Expecting property name enclosed in double quotes",
        "  data.jsonl:4: needs columns 'messages' or 'prompt' and 'completion', but has 'prompt'; "
        "the `columns` section can rename them",
        "  data.jsonl:6: messages is an empty list",
    ]
    assert "on_bad_record: skip" in advice


def test_of_many_bad_records_twenty_are_shown_and_all_are_counted(folder):
    (folder / "data.jsonl").write_text(json.dumps(PAIR) + "\n" + "".join(f"{'1' * n} x\n" for n in range(1, 1001)))
    with pytest.raises(DataError) as caught:
        read("data.jsonl")
    lines = str(caught.value).splitlines()
    assert lines[0] == "data.jsonl has 1,000 bad records:"
    assert lines[20].startswith("  data.jsonl:21: ") and lines[21] == "  ... and 980 more"
    assert len(lines) == 23


def test_a_reason_that_many_records_share_is_told_once(folder):
    (folder / "data.jsonl").write_text(json.dumps(PAIR) + "\n" + "x\n" * 1000 + '{"prompt": 3}\n')
    with pytest.raises(DataError) as caught:
        read("data.jsonl")
    lines = str(caught.value).splitlines()
    assert lines[0] == "data.jsonl has 1,001 bad records:"
    assert lines[1].startswith("  data.jsonl:2: not JSON")
    assert lines[1].endswith("(and 999 more: data.jsonl:3, data.jsonl:4, data.jsonl:5, ...)")
    assert lines[2].startswith("  data.jsonl:1002: ")
    assert len(lines) == 4  # the last one says what to do


def test_bad_records_are_left_out_and_returned_where_asked(folder):
    (folder / "data.jsonl").write_text("x\n" + json.dumps(PAIR) + "\n{}\n")
    got = read("data.jsonl", on_bad_record="skip")
    assert [(r.index, r.line) for r in got.records] == [(0, 2)]
    assert [fault.split(": ")[0] for fault in got.faults] == ["data.jsonl:1", "data.jsonl:3"]


def test_a_fault_never_quotes_a_whole_document(folder, write_jsonl):
    write_jsonl(folder / "data.jsonl", [PAIR, {"messages": [{"role": "x" * 1_000_000, "content": ""}]}])
    (fault,) = read("data.jsonl", on_bad_record="skip").faults
    assert len(fault) < 400 and fault.endswith("...")


def test_a_data_set_without_a_usable_record_is_refused_either_way(folder):
    (folder / "empty.jsonl").write_bytes(b"\n\n")
    (folder / "empty.csv").write_text("prompt,completion\n")
    for name in ("empty.jsonl", "empty.csv"):
        with pytest.raises(DataError, match=f"{name} holds no records"):
            read(name)
    (folder / "bad.jsonl").write_text("x\n")
    with pytest.raises(DataError, match=r"bad\.jsonl has 1 bad record and no usable one:\n  bad\.jsonl:1: not JSON"):
        read("bad.jsonl", on_bad_record="skip")


def test_rows_of_tables_are_told_by_row_and_lines_of_csv_by_line(folder):
    import datasets

    rows = [PAIR, {"prompt": "x\ny", "completion": ""}, {"prompt": "z", "completion": None}]
    datasets.Dataset.from_list(rows).to_parquet("a.parquet")
    got = read("a.parquet", on_bad_record="skip")
    assert [fault.split(": ")[0] for fault in got.faults] == ["a.parquet row 2", "a.parquet row 3"]
    datasets.Dataset.from_list(rows).to_csv("a.csv")
    got = read("a.csv", on_bad_record="skip")
    assert [fault.split(": ")[0] for fault in got.faults] == ["a.csv:3", "a.csv:5"]


def test_a_renamed_column_that_no_record_has_is_refused_with_the_nearest_name(folder, write_jsonl):
    write_jsonl(folder / "a.jsonl", [{**PAIR, "loss_weight": 2}])
    with pytest.raises(DataError, match=r"columns\.weight is 'los_weight', .*did you mean 'loss_weight'\?"):
        read("a.jsonl", Columns(weight="los_weight"))
    with pytest.raises(DataError, match=r"columns\.system is 'sys', which no record has$"):
        read("a.jsonl", Columns(system="sys"))
    # Prompts that are yet to be answered need no weight.
    assert len(read("a.jsonl", Columns(weight="los_weight"), require_answer=False).records) == 1


def test_what_is_no_data_file_is_told_in_one_line(folder, write_jsonl):
    (folder / "a.txt").touch()
    (folder / "a.jsonl.zst").touch()
    (folder / "a.parquet.gz").touch()
    (folder / "owner").mkdir()
    (folder / "owner" / "name").mkdir()
    write_jsonl(folder / "a.jsonl", [PAIR])
    os.mkfifo("pipe.jsonl")
    cases = {
        "none.jsonl": "no such file: none.jsonl",
        "data/none.jsonl": "no such file: data/none.jsonl",
        "gsm8k": "no such file: gsm8k",
        "owner/name": "is a folder",
        "a.txt": "cannot tell the format from the name",
        "a.jsonl.zst": "unpack it",
        "a.parquet.gz": "cannot tell the format from the name",
        "pipe.jsonl": "is a pipe",
    }
    for name, reason in cases.items():
        with pytest.raises(DataError, match=reason) as caught:
            read(name)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="split 'test' was requested, but a file has no splits"):
        read("a.jsonl", split="test")


def test_a_hub_that_cannot_be_reached_is_told(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="nobody/nothing is not a local file, and the Hugging Face hub cannot be"):
        read("nobody/nothing")


@given(data=st.binary(max_size=200))
def test_any_bytes_give_records_or_a_data_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    for name in ("a.jsonl", "a.json", "a.csv", "a.tsv", "a.jsonl.gz"):
        (folder / name).write_bytes(data)
        try:
            assert read(folder / name, require_answer=False).records
        except DataError as error:
            assert name in str(error)
