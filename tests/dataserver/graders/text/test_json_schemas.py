import socket
from typing import Any

import pytest

from posttrain.dataserver.graders.text.json_schemas import compile_schema
from posttrain.errors import DataError


def test_it_is_compiled_once() -> None:
    assert compile_schema({"type": "string"}) is compile_schema('{"type": "string"}')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strnig"}, r"\$\.type: 'strnig' is not valid"),
        ({"properties": {"a": {"pattern": "("}}}, "is not a 'regex'"),
        ({"minimum": float("nan")}, "NaN is not JSON"),
        ("{", "not JSON at column 2"),
        ("[]", "it is no object"),
        (True, "it is no object"),
        (5, "it is no object"),
        (None, "it is no object"),
        ({"a": object()}, "not JSON serializable"),
        ({"$schema": "https://example.com/mine"}, "is no draft that is known"),
        ({"$schema": 5}, "5 is not of type 'string'"),
        ({"$ref": "#/$defs/a"}, "'#/\\$defs/a' is not within it"),
        ({"properties": {"a": {"$ref": "#nowhere"}}}, "'#nowhere' is not within it"),
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
    pair = {"items": [{"type": "string"}, {"type": "integer"}]}  # a list of items ended with draft 2019-09

    assert not compile_schema({"$schema": "http://json-schema.org/draft-07/schema#", **pair}).is_valid(["a", "b"])
    with pytest.raises(DataError):
        compile_schema(pair)
