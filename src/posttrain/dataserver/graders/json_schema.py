"""Grader `json_schema`: check that the answer is JSON that is valid under a JSON Schema."""

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from posttrain.dataserver.graders.base import Example, Score
from posttrain.dataserver.graders.text.completions import GradeInput, column_value
from posttrain.dataserver.graders.text.fenced import JsonGrader, parse_strictly
from posttrain.errors import DataError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_PERSON: dict[str, Any] = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "additionalProperties": False,
}
_INLINE = {"inline": _PERSON}
_PARTIAL = {**_INLINE, "partial": 0.5, "max_errors": 4}

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class JsonSchema(JsonGrader):
    """1 if the answer is JSON (read as in `json_valid`) that a JSON Schema allows; else 0, or part of it.

    Schemas are Draft 2020-12, or the draft that `$schema` names. References outside the schema are rejected and
    `format` is not checked. `pattern` is a Python regular expression, which can take very long on an unlucky text: the
    completion then has no score at the deadline. If a schema does not say what it requires, `{}` is valid; the score
    says nothing about what is right.
    """

    type: Literal["json_schema"] = "json_schema"

    inline: dict[str, Any] | None = None
    """The schema for all rows; give this or `column`."""

    column: str | None = Field(default=None, min_length=1)
    """The column of the data set that holds each row's schema, as an object or as JSON text; `a.b` is key b of the
    object in column a."""

    partial: float = Field(default=0.0, ge=0, lt=1)
    """The most that almost valid JSON can earn: with e errors `partial` × (1 − e / `max_errors`), not below 0. If this
    is above 0, an answer built to have few errors is rewarded without being right."""

    max_errors: int = Field(default=10, ge=1)
    """Number of errors at which nothing is earned."""

    libraries: ClassVar[tuple[str, ...]] = ("jsonschema",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example('{"name": "Ada", "age": 36}', 1.0, params=_INLINE),
        Example('{"name": "Ada", "age": "36"}', 0.0, params=_INLINE, note="types count"),
        Example('{"name": "Ada"}', 0.0, params=_INLINE, note="a key is missing"),
        Example('{"name": "Ada", "age": 36, "x": 1}', 0.0, params=_INLINE, note="an extra key"),
        Example("{}", 0.0, params=_INLINE),
        Example("null", 0.0, params=_INLINE),
        Example('{"name": "Ada"}', 0.375, params=_PARTIAL, note="one error out of four: 0.5 × 3/4"),
        Example("{}", 0.25, params=_PARTIAL, note="two errors"),
        Example("no JSON", 0.0, params=_PARTIAL),
        Example("[" * 100_000, 0.0, params=_INLINE, note="deep nesting is harmless"),
        Example('```json\n{"name": "Ada", "age": 36}\n```', 0.0, params=_INLINE),
        Example('```json\n{"name": "Ada", "age": 36}\n```', 0.9, params={**_INLINE, "fenced_score": 0.9}),
        Example('"ab"', 1.0, params={"column": "schema"}, record={"schema": '{"type": "string"}'}),
        Example("7", 0.0, params={"column": "task.schema"}, record={"task": {"schema": {"type": "string"}}}),
        Example("", 0.0, params=_INLINE),
    )

    @model_validator(mode="after")
    def _one_schema(self) -> "JsonSchema":
        if (self.inline is None) == (self.column is None):
            raise ValueError("give the schema as inline, or the name of the column that contains it, but not both")
        if self.inline is not None:
            compile_schema(self.inline)
        return self

    def check_row(self, item: GradeInput) -> None:
        """With `column`, raise DataError unless the row has a valid schema."""
        self._validator(item)

    def score_value(self, value: Any, item: GradeInput) -> Score:
        """1, a share of `partial`, or 0."""
        try:
            errors = list(islice(self._validator(item).iter_errors(value), self.max_errors if self.partial else 1))
        except RecursionError:
            return Score(0.0, "nested too deep")
        if not errors:
            return Score(1.0)
        path = errors[0].json_path[:100].encode("ascii", "backslashreplace").decode()
        detail = f"{path}: {errors[0].message[:200]}"
        return Score(self.partial * (1 - len(errors) / self.max_errors) if self.partial else 0.0, detail)

    def _validator(self, item: GradeInput) -> "Validator":
        if self.column is None:
            return compile_schema(self.inline)
        schema = column_value(item.record, self.column)
        if schema is None:
            raise DataError(f"the column {self.column!r} is missing or null, but must contain a JSON Schema")
        try:
            return compile_schema(schema)
        except DataError as error:
            raise DataError(f"{self.column}: {error}") from None


def compile_schema(schema: object) -> "Validator":
    """The validator for a schema, which is a mapping or the JSON text of one.

    Draft 2020-12 unless `$schema` names another. `format` is an annotation and not checked.

    Raises:
        DataError: it is not a schema, refers to something outside itself, or refers to itself without end.
    """
    try:
        return _compile(schema if isinstance(schema, str) else json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"not usable as a JSON Schema: {error}"[:300]) from None


@lru_cache(maxsize=1024)
def _compile(text: str) -> "Validator":
    try:
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY
        from referencing.jsonschema import UnknownDialect
    except ImportError:
        raise DataError("schemas need the package jsonschema: pip install 'posttrain-toolkit[server]'") from None

    schema = parse_strictly(text)
    if not isinstance(schema, dict):
        raise DataError("it is not an object")
    dialect = str(schema.get("$schema", _DIALECT))
    try:
        validator_class = validator_for({"$schema": dialect}, default=Draft202012Validator)
        validator_class.check_schema(schema)
        _check_references(schema, dialect, validator_class)
        validator = validator_class(schema, registry=REGISTRY)  # the registry fetches nothing
        validator.is_valid(None)  # a schema that refers directly to itself recurses for ever, whatever the value
    except SchemaError as error:
        raise DataError(f"{error.json_path}: {error.message}") from None
    except UnknownDialect:
        raise DataError(f"$schema: {dialect!r} is not a known draft; leave it out for 2020-12") from None
    except RecursionError:
        raise DataError("it refers to itself without end, or is nested too deep") from None
    return validator


def _check_references(schema: Any, dialect: str, validator_class: "type[Validator]") -> None:
    """Resolve every reference; DataError for a broken one now, rather than while an answer is graded."""
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    specification = specification_with(dialect)
    root = specification.create_resource(schema)
    waiting = [(root, REGISTRY.resolver_with_root(root))]
    seen: set[int] = set()
    while waiting:
        resource, resolver = waiting.pop()
        if id(resource.contents) in seen or not isinstance(resource.contents, Mapping):
            continue
        seen.add(id(resource.contents))
        for target in (resource.contents[key] for key in _REFERENCES if key in resource.contents):
            try:
                found = resolver.lookup(target)
            except (Unresolvable, LookupError, ValueError, TypeError):
                raise DataError(f"$ref: {target!r} is not in the schema, and nothing is fetched") from None
            contents: Any = found.contents
            validator_class.check_schema(contents)
            waiting.append((specification.create_resource(contents), found.resolver))
        waiting += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]
