"""The JSON Schema of a config, for editors."""

import ast
import inspect
import json
import textwrap
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from posttrain.config.keys import EXTENDS
from posttrain.config.strict import StrictModel

Node = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def sentences(model: type[BaseModel]) -> dict[str, str]:
    """The sentence under each field of a config class, or of one that it derives from, by the field's name."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, StrictModel):
            found |= _below_fields(each)
    return {name: found[name] for name in model.model_fields if name in found}


def _below_fields(model: type[StrictModel]) -> dict[str, str]:
    try:
        (source,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    except OSError:  # a class that is made of another by a call
        return {}
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(getattr(source, "body", ()))
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


class _WithSentencesAndDefaults(GenerateJsonSchema):
    """Includes the sentences under fields, and the defaults of factories, which pydantic leaves out."""

    def model_schema(self, schema: core_schema.ModelSchema) -> Node:
        found, model = super().model_schema(schema), schema["cls"]
        for name, sentence in sentences(model).items():
            key = model.model_fields[name].alias or name
            found["properties"][key].setdefault("description", sentence)
        return found

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            return schema["default_factory"]()  # type: ignore[call-arg]
        return super().get_default_value(schema)


def json_schema(model: type[BaseModel]) -> str:
    """The schema of a config file as JSON text, for editors and other programs."""
    return json.dumps({"$schema": DIALECT, **_of_file(schema_of(model))}, indent=2, ensure_ascii=False) + "\n"


_EXTENDED = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "description": "A file or a list of files over which this file is read: later ones win, and this file over all.",
}


def _of_file(root: Node) -> Node:
    """The schema of a file, which may extend others; then these may have the required keys."""
    if "properties" not in root:
        return root
    allowed = {**root, "properties": {EXTENDS: _EXTENDED, **root["properties"]}}
    if "required" in root:
        allowed["anyOf"] = [{"required": allowed.pop("required")}, {"required": [EXTENDS]}]
    return allowed


def schema_of(model: type[BaseModel]) -> Node:
    """The schema of a config as a dict. Titles that only repeat the key are left out."""
    root = model.model_json_schema(schema_generator=_WithSentencesAndDefaults)
    for section in (root, *root.get("$defs", {}).values()):
        for prop in section.get("properties", {}).values():
            prop.pop("title", None)
    return {"title": model.__name__, **root}
