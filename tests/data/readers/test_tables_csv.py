"""Reading CSV as numbered objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.readers.json_lines import Line
from posttrain.data.readers.tables import read_csv
from posttrain.errors import DataError


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
    import datasets

    rows = [{"q": 'a "b", c\nd', "a": "é\u2028"}, {"q": "007", "a": "NA"}]
    datasets.Dataset.from_list(rows).to_csv(tmp_path / "data.csv")
    assert [line.value for line in read_csv(tmp_path / "data.csv")] == rows
