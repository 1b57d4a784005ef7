"""`--set key=value`: parsing it and applying it to a file's data."""

from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.keys import KeyPath, dotted, read_dotted
from posttrain.config.load import apply_override, parse_override
from posttrain.config.strict import TextFrom
from posttrain.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a.b=c=d", ("a", "b"), "c=d"),
        ("a=b=c", ("a",), "b=c"),
        ("a=5", ("a",), 5),
        ("a=1e-5", ("a",), "1e-5"),
        ("a=1.5", ("a",), 1.5),
        ("a=true", ("a",), True),
        ("a=null", ("a",), None),
        ("a=", ("a",), ""),
        ("a= ", ("a",), ""),
        ("a=''", ("a",), ""),
        ("a='5'", ("a",), "5"),
        ("a=[1, b]", ("a",), [1, "b"]),
        ("a={b: {c: d}}", ("a",), {"b": {"c": "d"}}),
        ("a=b c", ("a",), "b c"),
        ("a=b#c", ("a",), "b#c"),
        ('a="b #c"', ("a",), "b #c"),
        ("stages.0.until_step=5", ("stages", "0", "until_step"), 5),
        ('data."v1.1".split=dev', ("data", "v1.1", "split"), "dev"),
        ("on=1", ("on",), 1),
    ],
)
def test_the_first_equals_sign_ends_the_key_and_the_rest_is_yaml(text: str, path: tuple[str, ...], value: Any):
    override = parse_override(text)
    assert (override.path, override.value) == (path, value)


def test_texts_are_marked_wherever_they_are():
    value = parse_override("a=[x, {b: y}]").value
    assert isinstance(value[0], TextFrom)
    assert isinstance(value[1]["b"], TextFrom)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a", "--set a: write it as key=value"),
        ("", "write it as key=value"),
        ("=5", "write it as key=value"),
        ("a..b=5", "write it as key=value"),
        ("a.=5", "write it as key=value"),
        ("a b=5", "write it as key=value"),
        ('"a=5', "write it as key=value"),
        ("a.b=[1", "--set a.b=[1: the value is not valid YAML: while parsing a flow sequence"),
        ("a=@x", "put the value in quotes"),
        ("a=!x y", "the tag `!x`"),
        ("a={b: 1, b: 2}", "b: given twice"),
        ("a=#x", "reads everything after # as a comment"),
        ("a=x #y", "reads everything after # as a comment"),
        ("a=[1] #y", "reads everything after # as a comment"),
        ("api_key=@hunter2", "--set api_key=***: "),
        ("api_key: hunter2", "--set ***: "),
        ("server={api_key: @hunter2}", "--set server=***: "),
        ("server={'api_key':@hunter2}", "--set server=***: "),
        (f"a=[{'x' * 200}", "…: the value"),
    ],
)
def test_what_cannot_be_read_is_told_and_secrets_are_not(text: str, reason: str):
    with pytest.raises(ConfigError) as caught:
        parse_override(text)
    assert reason in str(caught.value)
    assert "hunter2" not in str(caught.value)


DATA = {"model": {"name": "m"}, "stages": [{"name": "one"}, {"name": "two"}], "lora": None, "empty": []}


@pytest.mark.parametrize(
    ("text", "path", "want"),
    [
        ("model.name=x", ("model", "name"), {"model": {"name": "x"}}),
        ("model={name: y}", ("model",), {"model": {"name": "y"}}),
        ("new.deep.key=1", ("new", "deep", "key"), {"new": {"deep": {"key": 1}}}),
        ("lora.r=8", ("lora", "r"), {"lora": {"r": 8}}),
        ("stages.1.name=x", ("stages", 1, "name"), {"stages": [{"name": "one"}, {"name": "x"}]}),
        ("stages.0=5", ("stages", 0), {"stages": [5, {"name": "two"}]}),
        ("model.0=x", ("model", "0"), {"model": {"name": "m", "0": "x"}}),
    ],
)
def test_an_override_changes_its_key_and_makes_the_sections_on_the_way(text: str, path: KeyPath, want: Any):
    data = deepcopy(DATA)
    assert apply_override(data, parse_override(text)) == path
    assert data == {**DATA, **want}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model.name.x=1", "model.name holds a single value"),
        ("stages.2.name=1", "there is no stages.2: the list has items 0 to 1"),
        ("stages.-1.name=1", "stages is a list; the next part must be a number, not -1"),
        ("stages.first=1", "the next part must be a number, not first"),
        ("stages.²=1", "the next part must be a number"),
        ("empty.0=1", "there is no empty.0: the list is empty"),
        (f"stages.{'9' * 5000}=1", "there is no stages.999"),
    ],
)
def test_an_override_that_leads_nowhere_changes_nothing(text: str, reason: str):
    data = deepcopy(DATA)
    with pytest.raises(ConfigError) as caught:
        apply_override(data, parse_override(text))
    assert reason in str(caught.value)
    assert data == DATA


keys = st.text(min_size=1, max_size=8).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


@given(st.lists(st.one_of(keys, st.integers(0, 99)), min_size=1, max_size=4))
def test_a_key_path_in_a_problem_can_be_pasted_into_set(path: list[str | int]):
    shown = dotted(tuple(path))
    assert shown.isprintable()
    assert read_dotted(f"{shown}=x") == (tuple(str(part) for part in path), "=x")


plain_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), keys),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=6,
)


@given(st.lists(keys, min_size=1, max_size=3), plain_values)
def test_a_value_written_as_yaml_comes_back(path: list[str], value: Any):
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    override = parse_override(f"{dotted(tuple(path))}={text.removesuffix('...' + chr(10))}")
    data: dict[str, Any] = {}
    assert apply_override(data, override) == tuple(path)
    for key in path:
        data = data[key]
    assert data == value


@given(st.text(max_size=40))
def test_any_text_gives_an_override_or_a_config_error(text: str):
    try:
        override = parse_override(text)
    except ConfigError:
        return
    assert override.path
