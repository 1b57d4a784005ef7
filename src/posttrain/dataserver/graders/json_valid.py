"""Grader `json_valid`: check that the answer is valid JSON."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from posttrain.dataserver.graders.base import Example, Score
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags
from posttrain.dataserver.graders.text.fenced import JsonGrader

_KINDS = {"object": dict, "array": list, "any": object}


class JsonValid(JsonGrader):
    """1 if the whole answer is one JSON value of the required kind; else 0.

    It is strict: no text around the value, no NaN or Infinity, no number beyond the range of a float, no duplicate key
    in an object, at most 100 levels deep. It says nothing about what the JSON means: use it as a gate.
    """

    type: Literal["json_valid"] = "json_valid"

    require: Literal["object", "array", "any"] = "object"
    """Which kind of value it must be."""

    min_keys: int = Field(default=1, ge=0)
    """Minimum number of keys in an object, or of elements in an array, so that `{}` earns nothing."""

    required_keys: tuple[str, ...] = ()
    """Keys that the object must have."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example('{"a": 1}', 1.0),
        Example(' {"a": 1}\n', 1.0, note="white space around it does not count"),
        Example('<think>one</think>\n{"a": 1}', 1.0, tags=ReasoningTags(), note="the reasoning is not part of it"),
        Example("{}", 0.0, note="an empty object earns nothing"),
        Example("5", 0.0, note="a bare number is not an object"),
        Example("5", 1.0, params={"require": "any"}),
        Example("[1]", 1.0, params={"require": "array"}),
        Example("[]", 0.0, params={"require": "array"}),
        Example('{"a": 1} is the answer', 0.0, note="text after it"),
        Example('{"a": 1} {"a": 1}', 0.0, note="two values"),
        Example("{'a': 1}", 0.0, note="Python is not JSON"),
        Example('{"a": NaN}', 0.0),
        Example('{"a": 1e999}', 0.0, note="infinite in most programs"),
        Example('{"a": 1, "a": 2}', 0.0, note="which of them would count?"),
        Example('{"answer": 1}', 1.0, params={"required_keys": ["answer"]}),
        Example('{"the answer": 1}', 0.0, params={"required_keys": ["answer"]}),
        Example('"answer"', 0.0, params={"required_keys": ["answer"]}, note="a string that contains the key"),
        Example('```json\n{"a": 1}\n```', 0.0, note="a fence is rejected"),
        Example('```json\n{"a": 1}\n```', 0.9, params={"fenced_score": 0.9}, note="or accepted at a lower score"),
        Example('Here:\n```json\n{"a": 1}\n```', 0.0, params={"fenced_score": 0.9}, note="text before the fence"),
        Example("", 0.0),
    )

    @model_validator(mode="after")
    def _keys_need_an_object(self) -> "JsonValid":
        if self.required_keys and self.require != "object":
            raise ValueError(f"required_keys are keys of an object; set require: object, not {self.require}")
        return self

    def score_value(self, value: Any, item: GradeInput) -> Score:
        """1 or 0."""
        if not isinstance(value, _KINDS[self.require]):
            return Score(0.0, f"no {self.require}")
        if isinstance(value, dict | list) and len(value) < self.min_keys:
            return Score(0.0, f"fewer than {self.min_keys} keys or elements")
        missing = [key for key in self.required_keys if key not in value]
        return Score(0.0, f"the key {missing[0]!r} is missing") if missing else Score(1.0)
