"""CSV, Parquet and hub data sets as numbered objects. `datasets` is the real one, without a network."""

import os
import shutil
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.jsonl import Line
from toolkit.core.tables import is_hub_id, load_hub, load_parquet, read_csv, table_digest, table_lines, without_nulls
from toolkit.errors import DataError


@pytest.fixture
def csv_lines(tmp_path):
    def read(data: bytes, delimiter: str = ",") -> list[Line]:
        (tmp_path / "data.csv").write_bytes(data)
        return list(read_csv(tmp_path / "data.csv", delimiter))

    return read


def test_cells_are_text_as_written_and_empty_ones_are_null(csv_lines):
    assert csv_lines(b'q,a\n007,NA\n 1.0 ,"x, ""y"""\n,null\n') == [
        Line(2, {"q": "007", "a": "NA"}),
        Line(3, {"q": " 1.0 ", "a": 'x, "y"'}),
        Line(4, {"q": None, "a": "null"}),
    ]


def test_a_row_over_several_lines_has_the_number_of_its_first(csv_lines):
    assert csv_lines(b'q,a\r\n"one\r\ntwo\nthree",x\r\n\r\ny,z') == [
        Line(2, {"q": "one\r\ntwo\nthree", "a": "x"}),
        Line(6, {"q": "y", "a": "z"}),
    ]


def test_tabs_part_cells_where_asked_and_a_byte_order_mark_is_stripped(csv_lines):
    assert csv_lines(b"\xef\xbb\xbfq\ta\n1,5\tx\n", "\t") == [Line(2, {"q": "1,5", "a": "x"})]


def test_a_wrong_row_is_told_and_its_neighbours_are_read(csv_lines):
    assert csv_lines(b'q,a\n1,2,3\n1\n\xff,2\n"x"y,2\nok,ok\n') == [
        Line(2, None, "has 3 cells where the header has 2"),
        Line(3, None, "has 1 cells where the header has 2"),
        Line(4, None, "not UTF-8"),
        Line(5, None, "not CSV: ',' expected after '\"'"),
        Line(6, {"q": "ok", "a": "ok"}),
    ]


def test_a_quote_that_never_closes_is_told_where_it_opens(csv_lines):
    assert csv_lines(b'q,a\n1,2\n"x,2\n3,4\n')[1:] == [Line(3, None, "not CSV: unexpected end of data")]


def test_a_header_that_cannot_be_used_is_told(csv_lines):
    with pytest.raises(DataError, match=r"data\.csv: the header names 'q' more than once"):
        csv_lines(b"q,a,q\n1,2,3\n")
    with pytest.raises(DataError, match=r"data\.csv: the header cannot be read: not UTF-8"):
        csv_lines(b"\xff,a\n")
    assert csv_lines(b"") == csv_lines(b"\n\n") == csv_lines(b"q,a\n") == []


def test_a_cell_of_ten_megabytes_and_a_nul_are_kept(csv_lines):
    text = "é\0" * 3_500_000
    assert csv_lines(f"q,a\n{text},x\n".encode()) == [Line(2, {"q": text, "a": "x"})]


@given(data=st.binary(max_size=200) | st.text('a,"\n\r\0', max_size=40).map(str.encode))
def test_any_bytes_give_lines_or_a_data_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "data.csv"
    path.write_bytes(data)
    try:
        read = list(read_csv(path))
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert all((line.value is None) != (line.fault is None) for line in read)


def test_csv_written_by_datasets_is_read_as_it_was(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"q": 'a "b", c\nd', "a": "é\u2028"}, {"q": "007", "a": "NA"}]
    datasets.Dataset.from_list(rows).to_csv(tmp_path / "data.csv")
    assert [line.value for line in read_csv(tmp_path / "data.csv")] == rows


MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.fixture
def parquet(tmp_path):
    datasets = pytest.importorskip("datasets")

    def write(rows: list[dict], name: str = "data.parquet"):
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / name)
        return tmp_path / name

    return write


def test_parquet_gives_its_rows(parquet):
    rows = [{"messages": MESSAGES, "weight": 0.5, "id": 1}, {"messages": MESSAGES[:1], "weight": None, "id": 2}]
    table = load_parquet(parquet(rows))
    assert list(table_lines(table, ["messages", "weight", "tools"])) == [
        Line(1, {"messages": MESSAGES, "weight": 0.5}),
        Line(2, {"messages": MESSAGES[:1], "weight": None}),
    ]
    # Where none of the wanted columns is there, the ones that are can be told.
    assert next(table_lines(table, ["prompt"])).value == rows[0]


def test_keys_that_only_other_rows_have_are_left_out_again(parquet):
    calls = [
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "g", "arguments": {"y": "z"}}]}]},
    ]
    assert [line.value for line in table_lines(load_parquet(parquet(calls)), ["messages"])] == calls


def test_nulls_are_left_out_of_objects_and_kept_in_lists():
    assert without_nulls({"a": None, "b": [None, {"c": None, "d": 0}], "e": ""}) == {"b": [None, {"d": 0}], "e": ""}


def test_any_file_name_will_do(parquet):
    for name in ("a[1].parquet", "a*.parquet", "a b#%20.parquet", "é.parquet"):
        assert len(load_parquet(parquet([{"q": name}], name))) == 1


def test_a_changed_file_of_the_same_age_is_read_anew(parquet):
    path = parquet([{"q": "old"}])
    age = path.stat()
    load_parquet(path)
    parquet([{"q": "new"}])
    os.utime(path, ns=(age.st_atime_ns, age.st_mtime_ns))
    assert next(table_lines(load_parquet(path), ["q"])).value == {"q": "new"}


def test_a_damaged_parquet_file_is_told_in_one_line(tmp_path, parquet):
    whole = parquet([{"q": "x" * 1000}]).read_bytes()
    for name, data in {"a": b"", "b": b"hello", "c": whole[:-20], "d": b"PAR1" + b"\xff" * 50 + b"PAR1"}.items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"{name}\.parquet cannot be read as Parquet: ") as caught:
            load_parquet(path)
        assert "\n" not in str(caught.value)


def test_the_digest_of_a_table_is_one_of_its_wanted_content(parquet):
    def digest(rows: list[dict], name: str) -> str:
        return table_digest(load_parquet(parquet(rows, name)), ["q", "a"])

    rows = [{"q": "1", "a": "2", "id": 1}, {"q": "3", "a": "4", "id": 2}]
    assert digest(rows, "a.parquet") == digest([{**row, "id": 9} for row in rows], "b.parquet")
    assert digest(rows, "a.parquet") != digest(rows[::-1], "b.parquet")
    assert digest(rows, "a.parquet") != digest([{"q": "1", "a": "2"}, {"q": "3", "a": "5"}], "b.parquet")


def test_a_hub_id_is_an_owner_and_a_name_and_perhaps_a_subset():
    for name in ("openai/gsm8k", "openai/gsm8k:main", "a-b/c.d_e:f-1.0"):
        assert is_hub_id(name)
    for name in ("gsm8k", "a/b/c", "/a/b", "./a", "../a", "a/", "~/a", "a/b:", "a b/c", "a/b\n", "https://x/y"):
        assert not is_hub_id(name)


def test_a_hub_that_cannot_be_reached_is_told_in_one_line(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="nobody/nothing is no file here, and .* cannot be reached: ") as caught:
        load_hub("nobody/nothing", "train")
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_told_with_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for read in (lambda: load_hub("a/b", "train"), lambda: load_parquet(tmp_path / "x.parquet")):
        with pytest.raises(DataError, match=r"pip install 'posttrain-toolkit\[train\]'"):
            read()
