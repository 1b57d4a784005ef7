"""JSON Lines and JSON arrays, and all the ways in which a line can be wrong."""

import gzip
import json
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.core.jsonl import Line, append_jsonl, json_line, read_json, read_jsonl, write_jsonl
from toolkit.errors import DataError

GOOD = b'{"a": 1}'


@pytest.fixture
def lines(tmp_path):
    """Writes bytes to a file and reads them as JSON Lines."""

    def read(data: bytes, name: str = "data.jsonl", **options) -> list[Line]:
        (tmp_path / name).write_bytes(data)
        reader = read_jsonl if ".jsonl" in name else read_json
        return list(reader(tmp_path / name, **options))

    return read


def test_blank_lines_are_skipped_and_counted_in_the_line_number(lines):
    assert lines(b'\n{"a": 1}\n \t\n\r\n{"a": 2}\n\n') == [Line(2, {"a": 1}), Line(5, {"a": 2})]


def test_a_byte_order_mark_is_stripped_also_where_files_were_put_together(lines):
    one = b'\xef\xbb\xbf{"a": 1}\n'
    assert lines(one + one) == [Line(1, {"a": 1}), Line(2, {"a": 1})]
    assert lines(b"\xef\xbb\xbf") == []


def test_crlf_is_accepted(lines):
    assert lines(b'{"a": "x"}\r\n{"a": "y\\r\\n"}\r\n') == [Line(1, {"a": "x"}), Line(2, {"a": "y\r\n"})]


def test_nul_is_kept(lines):
    assert lines(b'{"a": "x\\u0000y"}\n') == [Line(1, {"a": "x\0y"})]


def test_a_missing_final_newline_loses_nothing(lines):
    assert lines(b'{"a": 1}\n{"a": 2}') == [Line(1, {"a": 1}), Line(2, {"a": 2})]


def test_an_empty_file_has_no_lines(lines):
    assert lines(b"") == []


def test_only_a_newline_ends_a_line(lines):
    text = "a\u2028b\u2029c\u0085d\x7f"
    assert lines(json.dumps({"a": text}, ensure_ascii=False).encode()) == [Line(1, {"a": text})]


def test_a_line_of_ten_megabytes_is_read(lines):
    text = "é" * 5_000_000
    assert lines(json.dumps({"a": text}, ensure_ascii=False).encode() + b"\n" + GOOD) == [
        Line(1, {"a": text}),
        Line(2, {"a": 1}),
    ]


def test_a_line_over_the_limit_is_a_fault_and_the_next_one_is_read(lines):
    assert lines(b'{"a": "xx"}\n{"a": 1}\r\n{"a": "xx"}', max_line_bytes=9) == [
        Line(1, None, "longer than 9 bytes"),
        Line(2, {"a": 1}),
        Line(3, None, "longer than 9 bytes"),
    ]
    # The end of the line does not count.
    assert lines(GOOD + b"\n", max_line_bytes=8) == [Line(1, {"a": 1})]


def test_a_line_over_the_limit_is_never_in_memory_as_a_whole(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'"' + b"x" * 50_000_000 + b'"\n' + GOOD)
    tracemalloc.start()
    read = list(read_jsonl(path, max_line_bytes=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == [Line(1, None, "longer than 1000 bytes"), Line(2, {"a": 1})]
    assert peak < 5_000_000


WRONG = {
    "broken UTF-8": (b'{"a": "\xff"}', r"not UTF-8 at byte 8 \(0xff\)$"),
    "UTF-8 cut within a character": (b'{"a": "\xe2\x82"}', r"not UTF-8 at byte 8 \(0xe2\)"),
    "Latin-1": ('{"a": "café"}'.encode("latin-1"), r"not UTF-8 at byte 11 \(0xe9\)"),
    "a surrogate written in UTF-8": (b'{"a": "\xed\xa0\x80"}', "not UTF-8 at byte 8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "this looks like UTF-16"),
    "gzip without its name": (gzip.compress(GOOD, mtime=0)[:9], "this looks like gzip"),
    "plain text": (b"hello", "not JSON at column 1: Expecting value"),
    "cut short": (b'{"a": "x', "not JSON at column 7: Unterminated string"),
    "a trailing comma": (b'{"a": 1,}', "not JSON at column 9"),
    "single quotes": (b"{'a': 1}", "not JSON at column 2: Expecting property name"),
    "two objects on a line": (b'{"a": 1} {"a": 2}', "not JSON at column 10: Extra data"),
    "a raw NUL in a string": (b'{"a": "\x00"}', "not JSON at column 8: Invalid control character"),
    "a line of NULs": (b"\x00" * 9, "not JSON at column 1"),
    "a raw tab in a string": (b'{"a": "\t"}', "not JSON at column 8: Invalid control character"),
    "a bad escape": (b'{"a": "\\x"}', "not JSON at column 8: Invalid"),
    "an array": (b'[{"a": 1}]', "not a JSON object but an array"),
    "a string": (b'"a"', "not a JSON object but a string"),
    "a number": (b"1", "not a JSON object but a number"),
    "a boolean": (b"true", "not a JSON object but a boolean"),
    "null": (b"null", "not a JSON object but null"),
    "a repeated key": (b'{"a": 1, "b": 2, "a": 1}', "key 'a' stands in one object more than once"),
    "a repeated key within": (b'{"x": [{"a": 1, "a": 2}]}', "key 'a' stands in one object more than once"),
    "NaN": (b'{"a": NaN}', "NaN is not JSON"),
    "Infinity": (b'{"a": [-Infinity]}', "-Infinity is not JSON"),
    "an endless integer": (b'{"a": ' + b"1" * 5000 + b"}", "an integer of thousands of digits"),
    "nested too deep for Python": (b'{"a": ' + b"[" * 100_000, "nested deeper than 100 levels"),
    "nested too deep": (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper than 100 levels"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_line_is_told_and_its_neighbours_are_read(lines, kind):
    wrong, reason = WRONG[kind]
    first, fault, last = lines(GOOD + b"\n" + wrong + b"\n" + GOOD)
    assert (first, last) == (Line(1, {"a": 1}), Line(3, {"a": 1}))
    assert (fault.number, fault.value) == (2, None)
    assert re.search(reason, fault.fault), fault.fault
    assert len(fault.fault) < 200 and "\n" not in fault.fault


def test_a_hundred_levels_are_not_too_deep(lines):
    (line,) = lines(b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}")
    assert line.fault is None


@given(data=st.binary(max_size=200))
def test_any_bytes_give_lines_or_a_data_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "data.jsonl"
    path.write_bytes(data)
    read = list(read_jsonl(path, max_line_bytes=50))
    numbers = [line.number for line in read]
    assert numbers == sorted(set(numbers))
    assert all((line.value is None) != (line.fault is None) for line in read)
    for name in ("data.json", "data.json.gz"):
        other = path.with_name(name)
        other.write_bytes(data)
        try:
            assert all((line.value is None) != (line.fault is None) for line in read_json(other))
        except DataError as error:
            assert str(other) in str(error)


ALMOST_JSON = st.recursive(
    st.sampled_from(["null", "1", '"x"', "NaN", '"\\ud800"', "\xff", "1e999", " ", "\n", "\ufeff"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
    | st.lists(inner, max_size=3).map(lambda items: "{" + ",".join(f'"a":{item}' for item in items) + "}"),
)


@given(text=ALMOST_JSON, latin=st.booleans())
def test_text_that_is_almost_json_gives_lines_or_a_data_error(tmp_path_factory, text, latin):
    path = tmp_path_factory.mktemp("almost") / "data.json"
    path.write_bytes(text.encode("latin-1" if latin else "utf-8", "replace"))
    assert all((line.value is None) != (line.fault is None) for line in read_jsonl(path))
    try:
        assert all((line.value is None) != (line.fault is None) for line in read_json(path))
    except DataError as error:
        assert str(path) in str(error)


def test_an_array_gives_each_element_with_the_line_it_starts_on(lines):
    text = b'\xef\xbb\xbf\n[\n  {"a": 1},\n  {"a":\n 2}, {"a": 3}\n,\n 7,\n{"a": "\xff"}, {"a": 4, "a": 5}]\n'
    assert lines(text, "data.json") == [
        Line(3, {"a": 1}),
        Line(4, {"a": 2}),
        Line(5, {"a": 3}),
        Line(7, None, "not a JSON object but a number"),
        Line(8, None, "not UTF-8 at byte 8 (0xff)"),
        Line(8, None, "key 'a' stands in one object more than once"),
    ]


def test_an_empty_array_has_no_lines(lines):
    assert lines(b" [ ] ", "data.json") == []


def test_a_broken_array_is_told_with_its_place(lines):
    with pytest.raises(DataError, match=r"data\.json:2: not JSON at column 9: Expecting ',' delimiter"):
        lines(b'[{"a": 1},\n{"a": 1 "b"}]', "data.json")
    with pytest.raises(DataError, match=r"data\.json:1: not JSON"):
        lines(b"[1, 2,]", "data.json")
    with pytest.raises(DataError, match="nested too deep"):
        lines(b"[" * 100_000, "data.json")


def test_a_json_file_may_hold_json_lines(lines):
    assert lines(b'{"a": 1}\n{"a": 2}\n', "data.json") == [Line(1, {"a": 1}), Line(2, {"a": 2})]


def test_gzip_is_unpacked(lines):
    assert lines(gzip.compress(GOOD + b"\n" + GOOD), "data.jsonl.gz") == [Line(1, {"a": 1}), Line(2, {"a": 1})]
    assert lines(gzip.compress(b"[" + GOOD + b"]"), "data.json.gz") == [Line(1, {"a": 1})]


def test_damaged_gzip_is_told(lines):
    packed = gzip.compress(GOOD * 1000)
    for damaged in (packed[:-9], packed[:20] + b"\x00" * 9 + packed[29:], b"no gzip"):
        with pytest.raises(DataError, match=r"data\.jsonl\.gz cannot be read to its end"):
            lines(damaged, "data.jsonl.gz")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(read_jsonl(tmp_path / "none.jsonl"))


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "data.jsonl"
    values = [{"a": "é\u2028\n\0"}, {"a": [1, 2.5, None, True]}, {"a": "half \ud800"}]
    write_jsonl(path, values)
    assert [line.value for line in read_jsonl(path)] == values
    assert path.read_bytes().count(b"\n") == 3
    assert "é".encode() in path.read_bytes()


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "data.jsonl"
    write_jsonl(path, [{"a": 1}])
    with pytest.raises(ValueError, match="Out of range float"):
        write_jsonl(path, [{"a": 2}, {"a": float("nan")}])
    assert path.read_bytes() == json_line({"a": 1})
    assert list(tmp_path.iterdir()) == [path]


def test_appending_goes_on_after_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "data.jsonl"
    append_jsonl(path, [{"a": 1}])
    append_jsonl(path, [{"a": 2}, {"a": 3}])
    with path.open("ab") as file:
        file.write(b'{"a": ')
    append_jsonl(path, [{"a": 4}])
    read = list(read_jsonl(path))
    assert [line.value for line in read] == [{"a": 1}, {"a": 2}, {"a": 3}, None, {"a": 4}]
    assert [line.number for line in read] == [1, 2, 3, 4, 5]
