import socket
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.json_schema import JsonSchema, compile_schema
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError


def test_errors_beyond_the_limit_cost_no_more() -> None:
    grader = JsonSchema(inline={"items": {"type": "string"}}, partial=0.8, max_errors=4)

    def score(text: str) -> float:
        return grader.score(GradeInput(text, text)).value  # type: ignore[union-attr]

    assert score('["a", 1]') == pytest.approx(0.8 * 3 / 4)
    assert score('["a", 1, 2, 3]') == pytest.approx(0.8 * 1 / 4)
    assert score("[1, 2, 3, 4]") == 0
    assert score("[1, 2, 3, 4, 5, 6]") == 0


def test_the_detail_names_the_place() -> None:
    grader = JsonSchema(inline={"properties": {"a": {"type": "string"}}})

    assert grader.score(GradeInput("", '{"a": 1}')) == Score(0.0, "$.a: 1 is not of type 'string'")


def test_the_detail_can_be_sent_whatever_the_answer_holds() -> None:
    grader = JsonSchema(inline={"additionalProperties": {"type": "string"}})

    given = grader.score(GradeInput("", '{"\\ud800\\n": 1}'))

    assert isinstance(given, Score)
    assert given.detail.encode().decode() == given.detail


def test_a_value_nested_too_deep_for_a_recursive_schema_earns_nothing() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"anyOf": [{"items": {"$ref": "#"}}]}]}}}
    grader = JsonSchema(inline=schema)

    assert grader.score(GradeInput("", "[" * 5 + "]" * 5)) == Score(1.0)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # as in the server's workers; torch's compiler raises it in other tests
    try:
        assert grader.score(GradeInput("", "[" * 100 + "]" * 100)) == Score(0.0, "nested too deep")
    finally:
        sys.setrecursionlimit(before)


def test_exactly_one_place_for_the_schema() -> None:
    for params in ({}, {"inline": {}, "column": "schema"}):
        with pytest.raises(ValidationError, match="give the schema as inline, or the name of the column"):
            JsonSchema.model_validate(params)


def test_a_schema_that_is_none_is_refused_with_the_config() -> None:
    with pytest.raises(ValidationError, match=r"\$\.type: 'strnig' is not valid"):
        JsonSchema(inline={"type": "strnig"})


def test_a_row_without_a_usable_schema_is_refused_before_the_start() -> None:
    grader = JsonSchema(column="task.schema")

    with pytest.raises(DataError, match=r"the column 'task\.schema' is missing or null"):
        grader.check_row(GradeInput("", None, record={"task": {}}))
    with pytest.raises(DataError, match=r"task\.schema: not usable as a JSON Schema: .*'strnig'"):
        grader.check_row(GradeInput("", None, record={"task": {"schema": {"type": "strnig"}}}))
    grader.check_row(GradeInput("", None, record={"task": {"schema": "{}"}}))


def test_it_is_compiled_once() -> None:
    assert compile_schema({"type": "string"}) is compile_schema('{"type": "string"}')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strnig"}, r"\$\.type: 'strnig' is not valid"),
        ({"properties": {"a": {"pattern": "("}}}, "is not a 'regex'"),
        ({"minimum": float("nan")}, "NaN is not JSON"),
        ("{", "not JSON at column 2"),
        ("[]", "it is not an object"),
        (True, "it is not an object"),
        (5, "it is not an object"),
        (None, "it is not an object"),
        ({"a": object()}, "not JSON serializable"),
        ({"$schema": "https://example.com/mine"}, "is not a known draft"),
        ({"$schema": 5}, "5 is not of type 'string'"),
        ({"$ref": "#/$defs/a"}, "'#/\\$defs/a' is not in the schema"),
        ({"properties": {"a": {"$ref": "#nowhere"}}}, "'#nowhere' is not in the schema"),
        ({"properties": {"type": {}}, "items": {"$ref": "#/properties"}}, "is not valid"),
        ({"title": "x", "items": {"$ref": "#/title"}}, "'x' is not of type"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "refers to itself without end"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        compile_schema(schema)


@pytest.mark.parametrize("where", ["properties", "$defs", "definitions"])
def test_nothing_is_fetched(where: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        schema = {where: {"a": {"$ref": url}}, "items": {"$ref": f"#/{where}/a"}}
        with pytest.raises(DataError, match="nothing is fetched"):
            compile_schema(schema)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_file_is_not_read_either() -> None:
    with pytest.raises(DataError, match="nothing is fetched"):
        compile_schema({"$ref": "file:///etc/hostname"})


def test_a_schema_may_refer_to_its_parts_and_to_the_drafts() -> None:
    tree = {"$defs": {"node": {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}}}}
    validator = compile_schema({**tree, "$ref": "#/$defs/node"})

    assert validator.is_valid({"a": {"b": {}}})
    assert not validator.is_valid({"a": {"b": 1}})
    assert compile_schema({"$ref": "https://json-schema.org/draft/2020-12/schema"}).is_valid({"type": "string"})
    assert compile_schema({"$id": "https://a.example/b", "items": {"$ref": "b#/$defs/c"}, "$defs": {"c": {}}})


def test_another_draft_is_used_where_it_is_named() -> None:
    pair = {"items": [{"type": "string"}, {"type": "integer"}]}  # `items` may be a list up to draft 2019-09

    assert not compile_schema({"$schema": "http://json-schema.org/draft-07/schema#", **pair}).is_valid(["a", "b"])
    with pytest.raises(DataError):
        compile_schema(pair)
