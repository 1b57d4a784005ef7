"""The JSON schema for editors."""

import json

from sample_config import Sample, Stage

from posttrain.config.schema import json_schema, schema_of


def test_the_schema_says_what_the_docstrings_say_and_allows_no_other_keys():
    schema = json.loads(json_schema(Sample))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (schema["title"], schema["description"]) == ("Sample", "All of it.")
    assert schema["additionalProperties"] is False
    assert schema["anyOf"] == [{"required": ["name"]}, {"required": ["extends"]}]
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
