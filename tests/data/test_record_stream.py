"""Streaming records: what is yielded and counted, and which error is raised when."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.bad_records import bad_records_first
from posttrain.data.records import Columns
from posttrain.data.sources import Examples, ExampleStream, Parsed, open_data, require_usable_start
from posttrain.errors import DataError, ModelError

GOOD = {"prompt": "q", "completion": "a"}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_jsonl):
    """`source("+-+")` opens a file with a good, a bad and a good record."""
    monkeypatch.chdir(tmp_path)

    def write(kinds: str, columns: Columns | None = None) -> Examples[Parsed]:
        write_jsonl(tmp_path / "rows.jsonl", [GOOD if kind == "+" else {"prompt": "q"} for kind in kinds])
        return open_data("rows.jsonl", columns or Columns()).examples(require_answer=True)

    return write


def test_records_come_one_by_one_and_are_counted_as_they_come(source):
    stream = ExampleStream(source("++-+"), "skip")
    records = iter(stream)
    assert (next(records)[0], stream.usable, stream.bad.count) == (1, 1, 0)
    assert [line for line, _ in records] == [2, 4]
    assert (stream.usable, stream.bad.count) == (3, 1)
    assert [fault.split(": ")[0] for fault in stream.bad.shown] == ["rows.jsonl:3"]


def test_after_a_bad_record_no_more_are_given_and_all_are_told_in_the_end(source):
    given = []
    with pytest.raises(DataError, match=r"rows\.jsonl has 2 bad records:\n  rows\.jsonl:2: .*\n  rows\.jsonl:4: "):
        given += ExampleStream(source("+-+-+"), "error")
    stream = ExampleStream(source("+-+-+"), "error")
    records = iter(stream)
    assert next(records)[0] == 1
    with pytest.raises(DataError):
        next(records)
    assert (stream.usable, stream.bad.count) == (3, 2)


def test_of_many_bad_records_the_first_are_kept_and_all_are_counted(source):
    stream = ExampleStream(source("-" * 50 + "+"), "skip")
    assert len(list(stream)) == 1
    assert (stream.bad.count, len(stream.bad.shown)) == (50, 20)
    with pytest.raises(DataError) as refused:
        list(ExampleStream(source("-" * 50 + "+"), "error"))
    assert "has 50 bad records" in str(refused.value)
    assert str(refused.value).count("needs columns") == 1 and "(and 49 more: " in str(refused.value)


@pytest.mark.parametrize(
    ("kinds", "columns", "message"),
    [
        ("--", Columns(), "has 2 bad records and no usable one"),
        ("", Columns(), "holds no records"),
        ("++", Columns(system="sys"), "columns.system is 'sys', which no record has"),
    ],
)
def test_what_is_wrong_with_all_of_them_is_told_in_the_end(source, kinds: str, columns: Columns, message: str):
    with pytest.raises(DataError, match=message):
        list(ExampleStream(source(kinds, columns), "skip"))


@given(kinds=st.text("+-", max_size=30), policy=st.sampled_from(["error", "skip"]))
def test_the_stream_and_the_list_are_the_same(tmp_path_factory, kinds: str, policy):
    path = tmp_path_factory.mktemp("stream") / "rows.jsonl"
    path.write_text("".join(json.dumps(GOOD if kind == "+" else {}) + "\n" for kind in kinds))
    found = []
    for read in (
        lambda opened: [(each.line, each.conversation) for each in opened.read(policy, require_answer=True).records],
        lambda opened: [
            (line, said) for line, (said, _) in ExampleStream(opened.examples(require_answer=True), policy)
        ],
    ):
        try:
            found.append(read(open_data(path, Columns())))
        except DataError as error:
            found.append(str(error))
    assert found[0] == found[1]
    is_refused = "+" not in kinds or (policy == "error" and "-" in kinds)
    assert isinstance(found[0], str) == is_refused


def test_where_the_use_of_a_record_fails_bad_ones_after_it_are_told_first(source):
    for kinds, told in (("++-", "1 bad record"), ("+++", "the second is wrong")):
        records = iter(ExampleStream(source(kinds), "error"))
        with pytest.raises(DataError, match=told), bad_records_first(records):
            next(records)
            raise DataError("the second is wrong")


def test_bad_records_that_are_skipped_do_not_hide_another_error(source):
    records = iter(ExampleStream(source("+-"), "skip"))
    with pytest.raises(ModelError, match="no such token"), bad_records_first(records):
        raise ModelError("no such token")


@pytest.mark.parametrize(
    ("kinds", "policy", "is_refused"),
    [
        ("-" * 60, "error", True),
        ("-" * 60, "skip", True),
        ("-" * 150 + "+", "error", True),
        ("-" * 150 + "+", "skip", False),
        ("-" * 60 + "+", "error", False),
        ("", "error", False),
    ],
)
def test_data_that_cannot_be_used_from_the_start_are_told_at_once(source, kinds, policy, is_refused):
    opened = source(kinds)
    looks = [([opened.name], lambda: opened)]
    if not is_refused:
        return require_usable_start(looks, policy)
    with pytest.raises(DataError, match="and no usable one"):
        require_usable_start(looks, policy)
