"""Data sets of reasoning-gym, but for those that cannot be trained on, and JSON that loses nothing of their items."""

import dataclasses
import json
from collections.abc import Mapping
from difflib import get_close_matches
from fractions import Fraction
from types import ModuleType
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

_BY_HASH = "its items depend on Python's hash seed, so they change from process to process"
_ANY_SOLUTION = "its scorer does not look at the numbers of the question: one fixed answer is right everywhere"

# Found by running all data sets of reasoning-gym 0.1.25.
REFUSED: Mapping[str, str] = {
    "isomorphic_strings": _BY_HASH,
    "knight_swap": _BY_HASH,
    "polynomial_multiplication": _BY_HASH,
    "ransom_note": _BY_HASH,
    "word_ladder": _BY_HASH,
    "puzzle24": _ANY_SOLUTION,
    "coin_flip": "its scorer pays in full for the first digits alone: 0 is right for nearly all items",
    "game_of_life_halting": "its scorer takes any text for the answer True",
    "acre": "it cannot make one item without all the others",
    "composite": "a mix of data sets is what the stages are for",
}
"""Data sets that cannot be trained on, and why."""


def make_dataset(name: str, config: Mapping[str, Any], seed: int = 0, size: int = 1) -> "ProceduralDataset":
    """The library's data set.

    Raises:
        ConfigError: there is no such data set or parameter, or the data set cannot be trained on.
    """
    library = load_library()
    known = library.factory.DATASETS
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise ConfigError(f"reasoning-gym has no data set {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    if name in REFUSED:
        raise ConfigError(f"the data set {name} of reasoning-gym cannot be used: {REFUSED[name]}")
    fields = {field.name for field in dataclasses.fields(known[name][1])} - {"seed", "size"}
    for key in config:
        if key not in fields:
            raise ConfigError(f"{name} has no parameter {key!r}; it has {', '.join(sorted(fields))}")
    try:
        return library.create_dataset(name, **config, seed=seed, size=size)
    except (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} refuses its parameters: {error}") from None


def load_library() -> ModuleType:
    """The package reasoning_gym; takes a second or two, because it imports all of its data sets at once.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import reasoning_gym
    except ImportError:
        raise ConfigError(
            "items and scores of reasoning-gym need that package: pip install 'posttrain-toolkit[reasoning-gym]'"
        ) from None
    return reasoning_gym


def to_json(value: Any) -> Any:
    """A value of which JSON loses nothing: an object around them tells tuples, fractions and keys that are no text."""
    if isinstance(value, tuple):
        return {"(tuple)": [to_json(item) for item in value]}
    if isinstance(value, Fraction):
        return {"(fraction)": str(value)}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return {"(dict)": [[to_json(key), to_json(item)] for key, item in value.items()]}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    return json.loads(json.dumps(value))  # NumPy's texts and numbers become Python's


def from_json(value: Any) -> Any:
    """What `to_json` was given."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"(tuple)"}:
        return tuple(from_json(item) for item in value["(tuple)"])
    if value.keys() == {"(fraction)"}:
        return Fraction(value["(fraction)"])
    if value.keys() == {"(dict)"}:
        return {from_json(key): from_json(item) for key, item in value["(dict)"]}
    return {key: from_json(item) for key, item in value.items()}
