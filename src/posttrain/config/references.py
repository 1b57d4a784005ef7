"""Names that may be a local path or something else: a model or data set on a hub, or a packaged model."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo

from posttrain.config.strict import resolve_path

# What only a file is called; a hub id of this ending would be strange.
_FILE_ENDINGS = (".gguf", ".jsonl", ".json", ".jsonl.gz", ".parquet", ".csv", ".tsv")


def _resolve_local(value: object, info: ValidationInfo) -> object:
    """Make what is meant as a local path absolute, by the rule of all paths in a config; leave other names alone."""
    if not isinstance(value, str) or not value.strip():
        return value
    meant_as_path = value.startswith((".", "/", "~")) or value.lower().endswith(_FILE_ENDINGS)
    path = resolve_path(value, info)
    return str(path) if meant_as_path or Path(path).exists() else value


LocalOrNamed = Annotated[str, BeforeValidator(_resolve_local), Field(min_length=1)]
