"""Generate with a user's own engine: a class in a Python file of theirs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.base.user_code import error_in_words, import_file, split_place
from posttrain.errors import ConfigError
from posttrain.inference.engine import RolloutEngine

_METHODS = ("load", "complete", "score", "close")


def open_own_engine(
    place: str, model: str, end_ids: frozenset[int], options: Mapping[str, Any] | None = None
) -> RolloutEngine:
    """Create the engine at `place` (`file.py:Class`), which is called with the model, the end ids and the options.

    Args:
        model: folder or name of the model.
        end_ids: tokens that end a completion.
        options: keyword arguments of the class, from the config.

    Raises:
        ConfigError: there is no such class, it lacks a method, or it cannot be created.
    """
    file, name = split_place(place)
    kind = getattr(import_file(Path(file)), name, None)
    if not isinstance(kind, type):
        raise ConfigError(f"{file} has no class {name}")
    if lacking := [method for method in _METHODS if not callable(getattr(kind, method, None))]:
        raise ConfigError(f"{place} is no engine: it lacks {', '.join(lacking)}")
    try:
        return kind(model, end_ids, **(options or {}))
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"{place} cannot be created: {error_in_words(error)}") from error
