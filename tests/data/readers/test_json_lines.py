"""Reading valid and slightly irregular JSON Lines and JSON arrays."""

import gzip
import json
import tracemalloc

import pytest

from posttrain.base.strict_json import json_line
from posttrain.data.readers.json_lines import Line, read_json, read_jsonl

GOOD = b'{"a": 1}'


@pytest.fixture
def lines(tmp_path):
    """`lines(data, name)` writes bytes to a file and reads them as JSON Lines or, by its name, as JSON."""

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
    # The newline does not count.
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


def test_an_array_gives_each_element_with_the_line_it_starts_on(lines):
    text = b'\xef\xbb\xbf\n[\n  {"a": 1},\n  {"a":\n 2}, {"a": 3}\n,\n 7,\n{"a": "\xff"}, {"a": 4, "a": 5}]\n'
    assert lines(text, "data.json") == [
        Line(3, {"a": 1}),
        Line(4, {"a": 2}),
        Line(5, {"a": 3}),
        Line(7, None, "not a JSON object but a number"),
        Line(8, None, "not UTF-8 at byte 8 (0xff)"),
        Line(8, None, "key 'a' appears more than once in one object"),
    ]


def test_an_empty_array_has_no_lines(lines):
    assert lines(b" [ ] ", "data.json") == []


def test_a_json_file_may_hold_json_lines(lines):
    assert lines(b'{"a": 1}\n{"a": 2}\n', "data.json") == [Line(1, {"a": 1}), Line(2, {"a": 2})]


def test_gzip_is_unpacked(lines):
    assert lines(gzip.compress(GOOD + b"\n" + GOOD), "data.jsonl.gz") == [
        Line(1, {"a": 1}),
        Line(2, {"a": 1}),
    ]
    assert lines(gzip.compress(b"[" + GOOD + b"]"), "data.json.gz") == [Line(1, {"a": 1})]


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "data.jsonl"
    values = [{"a": "é\u2028\n\0"}, {"a": [1, 2.5, None, True]}, {"a": "half \ud800"}]
    path.write_bytes(b"".join(map(json_line, values)))
    assert [line.value for line in read_jsonl(path)] == values
    assert path.read_bytes().count(b"\n") == 3
    assert "é".encode() in path.read_bytes()


def test_what_is_not_json_is_never_written():
    with pytest.raises(ValueError, match="Out of range float"):
        json_line({"a": float("nan")})


def test_reading_goes_on_after_a_line_that_was_cut_short(lines):
    read = lines(b'{"a": 1}\n{"a": \n{"a": 4}\n')
    assert [(line.number, line.value) for line in read] == [(1, {"a": 1}), (2, None), (3, {"a": 4})]
