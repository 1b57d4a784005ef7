"""The schema for editors, and the plain words for what a key takes."""

import json
from typing import Any

import pytest
from pydantic import Field, TypeAdapter
from sample_config import Grader, Sample, Stage

from posttrain.config.schema import json_schema, schema_of, sections
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.type_words import words


def test_the_schema_says_what_the_docstrings_say_and_allows_no_other_keys():
    schema = json.loads(json_schema(Sample))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (schema["title"], schema["description"]) == ("Sample", "All of it.")
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name"]
    training = schema["$defs"]["Training"]
    assert training["additionalProperties"] is False
    assert training["properties"]["seed"] == {
        "default": 0,
        "description": "Seed of everything.",
        "minimum": 0,
        "type": "integer",
    }


def test_defaults_made_by_a_function_are_in_the_schema():
    assert schema_of(Stage)["properties"]["mix"]["default"] == {}


def test_sections_are_found_at_every_place():
    assert [(section.name, section.places) for section in sections(schema_of(Sample))] == [
        ("", [""]),
        ("Training", ["training"]),
        ("Stage", ["stages.N"]),
        ("MathGrader", ["graders.N (type: math)", "graders.N (type: length).math"]),
        ("LengthGrader", ["graders.N (type: length)"]),
        ("Server", ["server"]),
    ]


class Tree(StrictModel):
    """Holds itself."""

    by_name: dict[str, "Tree"] = Field(default_factory=dict)


def test_a_section_that_holds_itself_is_found_once():
    assert [(section.name, section.places) for section in sections(schema_of(Tree))] == [("Tree", ["", "by_name.NAME"])]
    assert json.loads(json_schema(Tree))["title"] == "Tree"


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        (int, "integer"),
        (float | None, "number or null"),
        (bool, "true or false"),
        (str, "text"),
        (ConfigPath, "path"),
        (list[ConfigPath], "list of path"),
        (list[Stage], "list of sections"),
        (Stage | None, "a section or null"),
        (Grader, "a section with type: math or a section with type: length"),
        (dict[str, int], "mapping of names to integer"),
        (dict[str, Any], "mapping"),
        (list, "list"),
        (Any, "anything"),
        (None, "null"),
        (tuple[int, str], "list of exactly: integer, text"),
    ],
)
def test_a_type_is_named_in_plain_words(kind: Any, want: str):
    schema = TypeAdapter(kind).json_schema()
    assert words(schema, schema) == want
