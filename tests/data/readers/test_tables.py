"""Reading Parquet and hub data sets as numbered objects, with the real `datasets` library and no network."""

import os
import sys

import pytest

from posttrain.data.readers.json_lines import Line
from posttrain.data.readers.tables import is_hub_id, load_hub, load_parquet, table_digest, table_lines, without_nulls
from posttrain.errors import DataError

MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.fixture
def parquet(tmp_path):
    import datasets

    def write(rows: list[dict], name: str = "data.parquet"):
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / name)
        return tmp_path / name

    return write


def test_parquet_gives_its_rows(parquet):
    rows = [
        {"messages": MESSAGES, "weight": 0.5, "id": 1},
        {"messages": MESSAGES[:1], "weight": None, "id": 2},
    ]
    table = load_parquet(parquet(rows))
    assert list(table_lines(table, ["messages", "weight", "tools"])) == [
        Line(1, {"messages": MESSAGES, "weight": 0.5}),
        Line(2, {"messages": MESSAGES[:1], "weight": None}),
    ]
    # With none of the wanted columns, all are returned, so that an error can name them.
    assert next(table_lines(table, ["prompt"])).value == rows[0]


def test_keys_that_only_other_rows_have_are_left_out_again(parquet):
    calls = [
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "g", "arguments": {"y": "z"}}]}]},
    ]
    assert [line.value for line in table_lines(load_parquet(parquet(calls)), ["messages"])] == calls


def test_nulls_are_left_out_of_objects_and_kept_in_lists():
    assert without_nulls({"a": None, "b": [None, {"c": None, "d": 0}], "e": ""}) == {
        "b": [None, {"d": 0}],
        "e": "",
    }


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
    for name, data in {
        "a": b"",
        "b": b"hello",
        "c": whole[:-20],
        "d": b"PAR1" + b"\xff" * 50 + b"PAR1",
    }.items():
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
    for name in (
        "gsm8k",
        "a/b/c",
        "/a/b",
        "./a",
        "../a",
        "a/",
        "~/a",
        "a/b:",
        "a b/c",
        "a/b\n",
        "https://x/y",
    ):
        assert not is_hub_id(name)


def test_a_hub_that_cannot_be_reached_is_told_in_one_line(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"nobody/nothing is not a local file.* cannot be reached: ") as caught:
        load_hub("nobody/nothing", "train")
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_told_with_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for read in (lambda: load_hub("a/b", "train"), lambda: load_parquet(tmp_path / "x.parquet")):
        with pytest.raises(DataError, match=r"pip install 'posttrain-toolkit\[train\]'"):
            read()
