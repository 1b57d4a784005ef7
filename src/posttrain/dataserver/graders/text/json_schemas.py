"""JSON Schemas, compiled once, that never fetch anything."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from posttrain.dataserver.graders.text.json_answers import parse_strictly
from posttrain.errors import DataError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def compile_schema(schema: object) -> "Validator":
    """The validator of a schema: a mapping, or the JSON text of one.

    Draft 2020-12 unless `$schema` names another. `format` is a remark and not checked.

    Raises:
        DataError: it is no schema, it refers to one outside of itself, or to itself without end.
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
        raise DataError("it is no object")
    dialect = str(schema.get("$schema", _DIALECT))
    try:
        validator_class = validator_for({"$schema": dialect}, default=Draft202012Validator)
        validator_class.check_schema(schema)
        _check_references(schema, dialect, validator_class)
        validator = validator_class(schema, registry=REGISTRY)  # which retrieves nothing
        validator.is_valid(None)  # a schema that refers to itself at once never ends, whatever the value
    except SchemaError as error:
        raise DataError(f"{error.json_path}: {error.message}") from None
    except UnknownDialect:
        raise DataError(f"$schema: {dialect!r} is no draft that is known here; leave it out for 2020-12") from None
    except RecursionError:
        raise DataError("it refers to itself without end, or is nested too deep") from None
    return validator


def _check_references(schema: Any, dialect: str, validator_class: "type[Validator]") -> None:
    """Follow every reference, so that none is found to lead nowhere while an answer is graded."""
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
                raise DataError(f"$ref: {target!r} is not within it, and nothing is fetched") from None
            contents: Any = found.contents
            validator_class.check_schema(contents)
            waiting.append((specification.create_resource(contents), found.resolver))
        waiting += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]
