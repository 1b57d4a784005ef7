"""Invalid JSON lines, arrays and gzip files, and the messages they cause."""

import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.readers.json_lines import Line, read_json, read_jsonl
from posttrain.errors import DataError

GOOD = b'{"a": 1}'


@pytest.fixture
def lines(tmp_path):
    """`lines(data, name)` writes bytes to a file and reads them as JSON Lines or, by its name, as JSON."""

    def read(data: bytes, name: str = "data.jsonl", **options) -> list[Line]:
        (tmp_path / name).write_bytes(data)
        reader = read_jsonl if ".jsonl" in name else read_json
        return list(reader(tmp_path / name, **options))

    return read


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
    "a repeated key": (b'{"a": 1, "b": 2, "a": 1}', "key 'a' appears more than once in one object"),
    "a repeated key within": (b'{"x": [{"a": 1, "a": 2}]}', "key 'a' appears more than once in one object"),
    "NaN": (b'{"a": NaN}', "NaN is not JSON"),
    "Infinity": (b'{"a": [-Infinity]}', "-Infinity is not JSON"),
    "an endless integer": (b'{"a": ' + b"1" * 5000 + b"}", "an integer with thousands of digits"),
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
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(inner, max_size=3).map(lambda items: "{" + ",".join(f'"a":{item}' for item in items) + "}")
    ),
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


def test_a_broken_array_is_told_with_its_place(lines):
    with pytest.raises(DataError, match=r"data\.json:2: not JSON at column 9: Expecting ',' delimiter"):
        lines(b'[{"a": 1},\n{"a": 1 "b"}]', "data.json")
    with pytest.raises(DataError, match=r"data\.json:1: not JSON"):
        lines(b"[1, 2,]", "data.json")
    with pytest.raises(DataError, match="nested too deep"):
        lines(b"[" * 100_000, "data.json")


def test_damaged_gzip_is_told(lines):
    packed = gzip.compress(GOOD * 1000)
    for damaged in (packed[:-9], packed[:20] + b"\x00" * 9 + packed[29:], b"no gzip"):
        with pytest.raises(DataError, match=r"data\.jsonl\.gz cannot be read to the end"):
            lines(damaged, "data.jsonl.gz")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(read_jsonl(tmp_path / "none.jsonl"))
