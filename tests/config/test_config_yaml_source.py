"""Reading YAML files: values, line numbers, and files that are not configs."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from posttrain.config.yaml_source import MAX_BYTES, parse_yaml, read_yaml
from posttrain.errors import ConfigError

TEXT = """\
# a comment
name: x
training:
  rate: 1e-5
stages:
  - name: one
    mix: {a: 1,
          b: 2}
  - name: two
"""


def test_keys_and_list_items_have_the_lines_they_stand_on():
    source = parse_yaml(TEXT)
    assert source.data["stages"][0]["mix"] == {"a": 1, "b": 2}
    assert source.lines == {
        (): 2,
        ("name",): 2,
        ("training",): 3,
        ("training", "rate"): 4,
        ("stages",): 5,
        ("stages", 0): 6,
        ("stages", 0, "name"): 6,
        ("stages", 0, "mix"): 7,
        ("stages", 0, "mix", "a"): 7,
        ("stages", 0, "mix", "b"): 8,
        ("stages", 1): 9,
        ("stages", 1, "name"): 9,
    }


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1e-5", "1e-5"),
        ("1.0e-5", 1e-5),
        ("yes", True),
        ("off", False),
        ("~", None),
        ("", None),
        ("0x10", 16),
        ("=", "="),
        ("'on'", "on"),
        ("2024-01-02", date(2024, 1, 2)),
        ("!!str 5", "5"),
        ("[a, {b: c}]", ["a", {"b": "c"}]),
    ],
)
def test_values_are_what_pyyaml_makes_of_them(text: str, want: Any):
    assert parse_yaml(f"a: {text}").data == {"a": want}


def test_keys_that_yaml_takes_for_booleans_stay_text():
    assert parse_yaml("on: 1\nno: 2\nTrue: 3").data == {"on": 1, "no": 2, "True": 3}


def test_aliases_are_copied_and_merged_keys_give_way_to_own_keys():
    source = parse_yaml("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc: *a\nd:\n  <<: [{x: 7}, *a]\n")
    assert source.data == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2},
        "d": {"x": 7, "y": 2},
    }
    assert source.data["a"] is not source.data["c"]
    assert source.lines["b", "x"] == 1
    assert source.lines["b", "y"] == 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "file is empty"),
        (b"# nothing\n", "file is empty"),
        (b"- a\n- b\n", ":1: the file contains a list"),
        (b"\nhello\n", ":2: the file contains one value"),
        (b"a: 1\nb: \xff\n", ":2: not UTF-8"),
        ("a: 1".encode("utf-16"), ":1: not UTF-8"),
        (b"a: " + b"x" * MAX_BYTES, "larger than 1024 KiB"),
        (b"a: 1\na: 2", ":2: a: given twice"),
        (b"a: 1\na: 2\na: 3", "config.yaml has 2 problems:\n"),
    ],
)
def test_a_file_that_is_no_config_is_refused(content: bytes, reason: str, tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert reason in str(caught.value)


def test_a_file_with_a_byte_order_mark_and_windows_line_ends_is_read(tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read_yaml(path).data == {"a": 1, "b": 2}
    assert read_yaml(path).lines["b",] == 2


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"no such file; check the path, which is relative to {tmp_path}"):
        read_yaml(Path("none.yaml"))
    with pytest.raises(ConfigError, match="this is a folder; give the YAML file in it"):
        read_yaml(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(Path("x\0y"))


yaml_like = st.text(alphabet=st.sampled_from(list("ab:-?[]{}&*!|>'\"%@`#,<=.~ \n\t\\x0e1")), max_size=60)


@given(st.one_of(st.text(max_size=80), yaml_like, st.binary(max_size=60)))
@example("? a")
@example("!!map\n")
def test_any_file_gives_plain_data_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, content: str | bytes):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    try:
        source = read_yaml(path)
    except ConfigError as error:
        assert str(error).startswith(str(path))
    else:
        assert all(isinstance(key, str) for key in source.data)
        assert set(source.lines) >= {(key,) for key in source.data}
