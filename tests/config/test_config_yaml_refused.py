"""Refused YAML: each problem with its line, and no file that exhausts time or memory."""

import time

import pytest

from posttrain.config.yaml_source import MAX_DEPTH, YamlRefusedError, parse_yaml


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nb:\n\tc: 1", 3, r"character '\t' that cannot start"),
        ("a: b: c", 1, "mapping values are not allowed here; indent with spaces, or put the value in quotes"),
        ("a: 1\n  b: 2", 2, "mapping values are not allowed here"),
        ("a:\n  - 1\n b: 2", 3, "<block mapping start>"),
        ("a:\n\n  b\nc\n", 5, "a simple key on line 4, could not find expected ':'"),
        ("a: 1\nb: 'x\nc: 2\n", 4, "a quoted scalar on line 2, found unexpected end of stream"),
        ("a: 1\nb: [1\nc: 2", 3, "a flow sequence on line 2, expected ',' or ']'"),
        ("a: 1\nb: {x: 1\n", 3, "a flow mapping on line 2, expected ',' or '}'"),
        ("a: [b]]", 1, "but found ']'"),
        ('a: "b" c', 1, "but found '<scalar>'"),
        ("a: @x", 1, "character '@' that cannot start any token"),
        ("a: - b", 1, "sequence entries are not allowed here"),
        ("a: ? b", 1, "mapping keys are not allowed here"),
        ("a: *x", 1, "undefined alias"),
        ("a: &x 1\nb: &x 2", 2, "on line 1, second occurrence"),
        ("a: ,", 1, "expected the node content"),
        ("a: 1\n---\nb: 2", 2, "found another document"),
        ('a: "\\q"', 1, "unknown escape character 'q'"),
        ('a: 1\nb: "\\UFFFFFFFF"', 2, "invalid character escape"),
        ('a: "\\ud800"', 1, "lone surrogate"),
        ("a: 1\nb: \x01", 2, "U+0001"),
        ("a: 1\nb: \ud800", 2, "U+D800"),
        ("a: !b!x 1", 1, "undefined tag handle"),
        ("%YAML 3.0\n---\na: 1", 1, "incompatible YAML document"),
        ("a: !!python/object/apply:os.system [ls]", 1, "the tag `!!python/object/apply:os.system`"),
        ("a: !mine x", 1, "the tag `!mine`"),
        ("a: !!set {x}", 1, "the tag `!!set`"),
        ("a: !!map [x]", 1, "the tag `!!map`"),
        ("a: !!int x", 1, "not a valid int; put it in quotes"),
        ("a: !!bool x", 1, "not a valid bool"),
        ("a: !!timestamp x", 1, "not a valid timestamp"),
        ("a: 2024-13-01", 1, "not a valid timestamp"),
        (f"a: 0x{'f' * 5000}", 1, "not a valid int; put it in quotes"),
        ("1: x", 1, 'put it in quotes: "1"'),
        ("~: x", 1, "the key ~ is not text"),
        ("a:\n  [1, 2]: x", 2, "cannot be a key"),
        ("a:\n  <<: 5", 2, "`<<` takes a mapping"),
        ("a: 1\nb: 2\na: 3", 3, "a: given twice, first on line 1"),
        ("s:\n  x: 1\n  'x': 2", 3, "s.x: given twice, first on line 2"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, reason: str):
    with pytest.raises(YamlRefusedError) as caught:
        parse_yaml(text)
    assert caught.value.problems[0][0] == line
    assert reason in caught.value.problems[0][1]


def test_all_duplicates_are_told_at_once_and_a_merged_one_only_once():
    with pytest.raises(YamlRefusedError) as caught:
        parse_yaml("a: &a {x: 1, x: 2}\nb: {<<: *a}\nc: 1\nc: 2")
    assert [line for line, _ in caught.value.problems] == [1, 4]


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
MERGED_TOGETHER = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
)
MERGED_LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{k{i}: {{<<: *a{i - 1}}}, l{i}: {{<<: *a{i - 1}}}}}\n" for i in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "expand to more than 100000"),
        (MERGED_LAUGHS, "expand to more than 100000"),
        (MERGED_TOGETHER, "expand to more than 100000"),
        ("a: &a [*a]", "an alias inside itself"),
        ("a: &a\n  <<: *a", "an alias inside itself"),
        ("[" * 100_000, f"deeper than {MAX_DEPTH}"),
        ("a: " + "{a: " * 60, f"deeper than {MAX_DEPTH}"),
        ("a: [" + "1," * 150_000 + "]", "more than 100000 values"),
    ],
)
def test_a_small_file_cannot_become_a_large_one(text: str, reason: str):
    start = time.monotonic()
    with pytest.raises(YamlRefusedError, match=reason):
        parse_yaml(text)
    assert time.monotonic() - start < 60


def test_the_deepest_allowed_nesting_is_read():
    assert parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH).data is not None
    with pytest.raises(YamlRefusedError):
        parse_yaml("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))


def test_a_secret_never_comes_back_in_a_problem():
    for text in (
        "password: !hunter2 x",
        "password: *hunter2",
        "password: !hunter2!x y",
        "password: &hunter2 x\nother: &hunter2 y",
        "api_key: 2024-13-01",
        "token: 'hunter2' x",
    ):
        with pytest.raises(YamlRefusedError) as caught:
            parse_yaml(text)
        assert "hunter2" not in str(caught.value)
        assert "2024" not in str(caught.value)
