"""Grader `json_equal`: check that the answer is JSON with the same value as the gold JSON."""

import json
from collections import Counter
from collections.abc import Hashable
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from posttrain.dataserver.graders.base import Example, Score
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.text.fenced import JsonGrader, parse_strictly
from posttrain.errors import DataError


class JsonEqual(JsonGrader):
    """1 if the answer is JSON (read as in `json_valid`) whose value equals the gold's; else 0.

    The gold is a value, or text that is JSON. The order of an object's keys never matters; 1 equals 1.0, true does not
    equal 1, and texts must be equal character by character. A number with a decimal point or an exponent is read as a
    double, as in most programs: beyond 16 digits, two numbers that are written differently may be equal.
    """

    type: Literal["json_equal"] = "json_equal"

    ignore_order: bool = False
    """Whether the elements of arrays, at any depth, may be in another order, each as often as in the gold."""

    relative_tolerance: float = Field(default=0.0, ge=0, lt=1)
    """How far a number may be off, as a share of the gold number."""

    needs_gold: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example('{"b": 2, "a": 1}', 1.0, gold='{"a": 1, "b": 2}', note="keys have no order"),
        Example('{"a": 1.0}', 1.0, gold={"a": 1}, note="a gold may be a value; 1.0 is 1"),
        Example('{"a": true}', 0.0, gold={"a": 1}, note="true is not 1"),
        Example('{"a": "1"}', 0.0, gold={"a": 1}, note="nor is a string"),
        Example('{"a": 1, "c": 3}', 0.0, gold={"a": 1}, note="an extra key"),
        Example("{}", 0.0, gold={"a": 1}),
        Example("[1, 2]", 1.0, gold=[1, 2]),
        Example("[2, 1]", 0.0, gold=[1, 2]),
        Example("[2, 1]", 1.0, gold=[1, 2], params={"ignore_order": True}),
        Example("[2, 1, 1]", 0.0, gold=[1, 2, 2], params={"ignore_order": True}, note="each must occur as often"),
        Example("[true]", 0.0, gold=[1], params={"ignore_order": True}),
        Example('{"a": 3.14}', 0.0, gold={"a": 3.1416}),
        Example('{"a": 3.14}', 1.0, gold={"a": 3.1416}, params={"relative_tolerance": 0.001}),
        Example('"Paris"', 1.0, gold='"Paris"'),
        Example('{"a": 1} {"a": 2}', 0.0, gold={"a": 1}, note="several candidates"),
        Example("9007199254740993", 0.0, gold=9007199254740992, note="whole numbers are exact"),
        Example("9007199254740993.0", 1.0, gold=9007199254740992, note="with a decimal point they are read as doubles"),
        Example("", 0.0, gold={"a": 1}),
    )

    @model_validator(mode="after")
    def _one_freedom(self) -> "JsonEqual":
        if self.ignore_order and self.relative_tolerance:
            raise ValueError(
                "with a tolerance it is not clear which elements of two arrays belong together; "
                "set only one of ignore_order and relative_tolerance"
            )
        return self

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold is JSON."""
        _gold_value(item.gold)

    def score_value(self, value: Any, item: GradeInput) -> Score:
        """1 or 0."""
        gold = _gold_value(item.gold)
        same = _bag(value) == _bag(gold) if self.ignore_order else _same(value, gold, self.relative_tolerance)
        return Score(float(same))


def _gold_value(gold: Any) -> Any:
    try:
        return parse_strictly(gold if isinstance(gold, str) else json.dumps(gold))
    except (DataError, TypeError, ValueError) as error:
        raise DataError(f"the gold is not usable as JSON: {error}"[:300]) from None


def _same(given: Any, gold: Any, tolerance: float) -> bool:
    if isinstance(gold, dict):
        return (
            isinstance(given, dict)
            and given.keys() == gold.keys()
            and all(_same(given[key], value, tolerance) for key, value in gold.items())
        )
    if isinstance(gold, list):
        return (
            isinstance(given, list)
            and len(given) == len(gold)
            and all(_same(one, other, tolerance) for one, other in zip(given, gold, strict=True))
        )
    if _is_number(given) and _is_number(gold):
        return given == gold or abs(given - gold) <= tolerance * abs(gold)
    return type(given) is type(gold) and given == gold


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bag(value: Any) -> Hashable:
    """A key that is equal for values that differ only in the order within their arrays."""
    if isinstance(value, dict):
        return "object", frozenset((key, _bag(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return "array", frozenset(Counter(map(_bag, value)).items())
    return "number" if _is_number(value) else type(value).__name__, value
