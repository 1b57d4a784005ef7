"""Validation errors as one line per problem: the key as typed, what is wrong, what is expected."""

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import Discriminator, Field, Tag, ValidationError, field_validator
from sample_config import Grader, MathGrader, Sample, Stage

from posttrain.config.errors import find_problems
from posttrain.config.keys import dotted
from posttrain.config.strict import StrictModel


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def _kind(value: Any) -> str:
    return "many" if isinstance(value, list) else "one"


class Odd(StrictModel):
    colour: Colour = Colour.RED
    switch: Literal["on", "off"] = "on"
    pair: tuple[int, Literal["x"]] = (1, "x")
    even: int = Field(default=2, multiple_of=2)
    code: str = Field(default="a1", pattern="^[a-z][0-9]$")
    best: Grader | None = None
    by_name: dict[str, Grader | None] = Field(default_factory=dict)
    either: Stage | MathGrader | Literal["none"] = "none"
    size: int | Literal["auto"] = "auto"
    lists: list[list[int] | Literal["all"]] = Field(default_factory=list)
    called: (
        Annotated[Annotated[Stage, Tag("one")] | Annotated[list[Stage], Tag("many")], Discriminator(_kind)] | None
    ) = None
    checked: str = ""
    hf_token: str = ""
    some: tuple[Stage, ...] | None = Field(default=None, min_length=1)
    short_keys: dict[Annotated[str, Field(max_length=2)], int] = Field(default_factory=dict)
    itself: "Odd | None" = None

    @field_validator("checked", "hf_token")
    @classmethod
    def _no_spaces(cls, value: str) -> str:
        if " " in value:
            raise ValueError(f"{value!r} has\nspaces; take them out")
        return value


def told(model: type[StrictModel], data: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(data)
    return [f"{dotted(problem.path)}: {problem.text}" for problem in find_problems(caught.value, model, data)]


MATHS = {"type": "math"}


@pytest.mark.parametrize(
    ("data", "want"),
    [
        ({"training": {"learning_rate": "abc"}}, "training.learning_rate: should be a valid number, found 'abc'"),
        ({"training": {"learning_rate": 0}}, "training.learning_rate: should be greater than 0, found 0"),
        ({"training": {"learning_rate": True}}, "training.learning_rate: should be a valid number, found true"),
        (
            {"training": {"learning_rate": float("inf")}},
            "training.learning_rate: should be a finite number, found inf",
        ),
        (
            {"training": {"rows": 2.5}},
            "training.rows: should be a valid integer, got a number with a fractional part, found 2.5",
        ),
        ({"training": {"exact": "perhaps"}}, "training.exact: should be a valid boolean, found 'perhaps'"),
        ({"training": None}, "training: the section is empty; write its keys below it, or remove the line"),
        ({"training": 5}, "training: should be a section, found 5"),
        ({"name": 5}, "name: should be text, found 5; put it in quotes"),
        ({"name": True}, "name: should be text, found true; put it in quotes"),
        ({"name": None}, "name: should be text, found null"),
        ({"data": 5}, "data: should be a path, found 5"),
        ({"data": ""}, "data: the path is empty; give one, or leave the key out"),
        ({"trainng": {}}, "trainng: unknown key; did you mean training?"),
        ({"Training": {}}, "Training: unknown key; did you mean training?"),
        ({"learning_rate": 1}, "learning_rate: unknown key here; did you mean training.learning_rate?"),
        (
            {"server": {"zzz": 1}},
            "server.zzz: unknown key; the keys here are: port, api_key",
        ),
        ({"stages": [{"name": "", "until_step": 1}]}, "stages.0.name: should have at least 1 character, found ''"),
        ({"stages": [{"name": "a"}]}, "stages.0.until_step: missing: this key is required"),
        ({"stages": ["a"]}, "stages.0: should be a section with name, until_step, found 'a'"),
        ({"stages": {}}, "stages: should be a list, found {}"),
        (
            {"stages": [{"name": "a", "until_step": 1, "mix": {"b": "c"}}]},
            "stages.0.mix.b: should be a valid number, found 'c'",
        ),
        ({"targets": 5}, "targets: should be 'auto' or 'all'; or should be a list, found 5"),
        ({"targets": "al"}, "targets: should be 'auto' or 'all'; or should be a list, found 'al'; did you mean all?"),
        ({"targets": ["a", 5]}, "targets.1: should be text, found 5; put it in quotes"),
        ({"graders": [{}]}, "graders.0.type: missing: set it to one of: math, length"),
        (
            {"graders": [{"type": "mth"}]},
            "graders.0.type: should be one of: math, length, found 'mth'; did you mean math?",
        ),
        ({"graders": [{"type": ["x"]}]}, "graders.0.type: should be one of: math, length, found ['x']"),
        ({"graders": ["math"]}, "graders.0: should be a section with type, found 'math'"),
        ({"graders": [MATHS, {"type": "length"}]}, "graders.1.most: missing: this key is required"),
        (
            {"graders": [{**MATHS, "tolerance": -1}]},
            "graders.0.tolerance: should be greater than or equal to 0, found -1",
        ),
        (
            {"graders": [{**MATHS, "tolerence": 1}]},
            "graders.0.tolerence: unknown key; did you mean tolerance?",
        ),
        (
            {"graders": [{"type": "length", "most": 1, "math": {**MATHS, "tolerance": "x"}}]},
            "graders.0.math.tolerance: should be a valid number, found 'x'",
        ),
    ],
)
def test_a_problem_is_told_in_plain_words(data: dict[str, Any], want: str):
    assert told(Sample, {"name": "x", **data}) == [want]


@pytest.mark.parametrize(
    ("data", "want"),
    [
        ({"colour": "rad"}, "colour: should be 'red' or 'blue', found 'rad'; did you mean red?"),
        ({"switch": True}, "switch: should be 'on' or 'off', found true; put it in quotes"),
        ({"pair": [1, "y"]}, "pair.1: should be 'x', found 'y'"),
        ({"pair": [1]}, "pair.1: missing: this key is required"),
        ({"even": 3}, "even: should be a multiple of 2, found 3"),
        ({"code": "A"}, "code: should match pattern '^[a-z][0-9]$', found 'A'"),
        ({"best": {}}, "best.type: missing: set it to one of: math, length"),
        ({"best": {"type": "length", "most": "x"}}, "best.most: should be a valid integer, found 'x'"),
        (
            {"by_name": {"a": {"type": "math", "tolerance": "x"}}},
            "by_name.a.tolerance: should be a valid number, found 'x'",
        ),
        (
            {"by_name": {"math": {"type": "lenth"}}},
            "by_name.math.type: should be one of: math, length, found 'lenth'; did you mean length?",
        ),
        (
            {"either": {"name": "a", "until_step": 0}},
            "either.until_step: should be greater than or equal to 1, found 0",
        ),
        (
            {"either": {"type": "math", "tolerance": -1}},
            "either.tolerance: should be greater than or equal to 0, found -1",
        ),
        (
            {"either": 5},
            "either: should be a section with name, until_step; or should be a section with type; or should be 'none', "
            "found 5",
        ),
        ({"size": "big"}, "size: should be a valid integer; or should be 'auto', found 'big'"),
        ({"lists": ["all", [1, "b"]]}, "lists.1.1: should be a valid integer, found 'b'"),
        ({"lists": ["al"]}, "lists.0: should be a valid list; or should be 'all', found 'al'; did you mean all?"),
        ({"called": [{"name": "a"}]}, "called.0.until_step: missing: this key is required"),
        ({"called": {"name": "a"}}, "called.until_step: missing: this key is required"),
        ({"some": []}, "some: should have at least 1 item, found []"),
        ({"some": [{"name": "a"}]}, "some.0.until_step: missing: this key is required"),
        ({"checked": "a b"}, "checked: 'a b' has spaces; take them out"),
        ({"hf_token": "a b"}, "hf_token: '***' has spaces; take them out"),
        ({"hf_token": 5}, "hf_token: should be text, found ***; put it in quotes"),
        (
            {"short_keys": {"abc": 1}},
            "short_keys.abc: not allowed as a key here: String should have at most 2 characters",
        ),
        (
            {"itself": {"itself": {"size": "x"}}},
            "itself.itself.size: should be a valid integer; or should be 'auto', found 'x'",
        ),
        ({"even": 16**5000 + 1}, "even: should be an integer that fits in 64 bits, found a very large number"),
    ],
)
def test_a_problem_in_an_odd_place_is_told_in_plain_words_too(data: dict[str, Any], want: str):
    assert told(Odd, data) == [want]


def test_a_rule_broken_by_several_errors_is_told_once_for_each():
    data = {"name": "x", "graders": [MATHS | {"a": 1, "b": 2}], "targets": [1, 2]}
    assert [line.split(":")[0] for line in told(Sample, data)] == [
        "graders.0.a", "graders.0.b", "targets.0", "targets.1"
    ]  # fmt: skip
