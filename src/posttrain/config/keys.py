"""Key paths, the places they come from, and the display of values in messages."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.base.secrets import without_passwords
from posttrain.base.text import as_shown, on_one_line
from posttrain.errors import ConfigError

KeyPath = tuple[str | int, ...]

EXTENDS = "extends"
"""The key at the top of a config file that names other files; it is none of the config's own."""


class Place(NamedTuple):
    """Where a key was set: `config.yaml:12`, or the `--set` argument."""

    order: tuple[int, int]
    """Sort key of problems: number of the file as it was read, and line; overrides come after all files."""

    label: str
    """How a message about it starts."""


class Problem(NamedTuple):
    """One problem: its key path, and one line of text without its place."""

    path: KeyPath
    text: str


def nearest_place(places: Mapping[KeyPath, Place], path: KeyPath) -> Place:
    """The place of the key, or else of the innermost enclosing section that has one."""
    while path and path not in places:
        path = path[:-1]
    return places[path]


def told(places: Mapping[KeyPath, Place], problem: Problem) -> tuple[Place, str]:
    """The place of a problem, and its text with its key.

    The keys of a merged section may stand in several files. Where its message names only keys that stand elsewhere,
    the place is that of the first; of the others, the text says where they stand.
    """
    place = nearest_place(places, problem.path)
    named = {key: places[key] for key in _named(problem) if key in places}
    if named and all(each.order[0] != place.order[0] for each in named.values()):
        place = next(iter(named.values()))
    elsewhere = [
        f"{dotted(key[len(problem.path) :])} is set at {each.label}"
        for key, each in named.items()
        if each.order[0] != place.order[0] and not each.label.startswith("--")
    ]
    text = f"{dotted(problem.path)}: {problem.text}" if problem.path else problem.text
    return place, "; ".join([text, *elsewhere])


def _named(problem: Problem) -> dict[KeyPath, None]:
    """The key paths within its section that a message may name, as `rows` or `training.rows`, in its order."""
    words = (word.strip(".").split(".") for word in re.findall(r"\w[\w.-]*", problem.text))
    paths = [tuple(int(part) if part.isdecimal() else part for part in word) for word in words]
    inside = [path if path[: len(problem.path)] == problem.path else (*problem.path, *path) for path in paths]
    return dict.fromkeys(path for path in inside if len(path) > len(problem.path))


# How many problems an error shows, of all that it counts, and how many characters of each.
_SHOWN_PROBLEMS = 20
_LONGEST_PROBLEM = 2000


def one_error(path: Path, problems: Sequence[str], *, are_all: bool = True) -> ConfigError:
    """One error for the problems of a config; `are_all` is False if there are more of them."""
    shown = [text if len(text) <= _LONGEST_PROBLEM else f"{text[:_LONGEST_PROBLEM]}…" for text in problems]
    if len(shown) == 1:
        return ConfigError(shown[0])
    head = f"{as_shown(path)} has {'' if are_all else 'more than '}{len(shown)} problems:"
    left = len(shown) - _SHOWN_PROBLEMS
    more = [f"... and {left} more"] if left > 0 else []
    return ConfigError("\n".join([head, *(f"  {line}" for line in [*shown[:_SHOWN_PROBLEMS], *more])]))


_BARE_KEY = re.compile(r'[^."=\s]+')
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|[^."=\s]+')


def dotted(path: KeyPath) -> str:
    """The path as `--set` takes it, such as `stages.0.until_step`; a key that contains a dot is quoted."""
    return ".".join(_as_typed(str(part)) for part in path)


def _as_typed(key: str) -> str:
    key = key if len(key) <= _LONGEST_KEY else f"{key[: _LONGEST_KEY - 1]}…"
    if _BARE_KEY.fullmatch(key) and key.isprintable():
        return key
    return json.dumps(key, ensure_ascii=not key.isprintable())


def read_dotted(text: str) -> tuple[tuple[str, ...], str] | None:
    """Parse a key path at the start of `text` into its parts and the rest; None if there is no path."""
    parts, position = [], 0
    while match := _KEY.match(text, position):
        part = match.group()
        try:
            parts.append(json.loads(part) if part.startswith('"') else part)
        except ValueError:
            return None
        position = match.end()
        if text[position : position + 1] != ".":
            return tuple(parts), text[position:]
        position += 1
    return None


_SECRET = re.compile(
    r"(^|[_\-.])(authorization|token|password|passwd|passphrase|api[_-]?key|(access|private)[_-]?key|secret|secrets)$",
    re.I,
)
_LONGEST = 60
# No URL is longer.
_LONGEST_SEARCHED = 2000
VERY_LARGE = "a very large number"
_LONGEST_KEY = 100


def is_secret(path: KeyPath) -> bool:
    """Whether a key on the path is named like a secret: `hf_token` and `api_key` are, `max_tokens` is not."""
    return any(isinstance(part, str) and _SECRET.search(part) for part in path)


def mentions_secret(text: str) -> bool:
    """Whether a word in unparsed text is named like a secret."""
    return any(_SECRET.search(word) for word in re.findall(r"[\w.-]+", text))


def shown(value: Any, path: KeyPath = ()) -> str:
    """A value for a message: null and booleans as in YAML, shortened, and without secrets."""
    if is_secret(path):
        return "***"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        text = repr(_masked(value))
    except ValueError:  # Python refuses to write out an integer of thousands of digits
        return VERY_LARGE
    return shortened(text)


def shortened(text: str) -> str:
    """The text on one line, cut to 60 characters, without the passwords in its URLs."""
    # Passwords are removed first: a URL that was cut may not be recognised any more.
    text = on_one_line(without_passwords(text[:_LONGEST_SEARCHED])[: _LONGEST + 1])
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _masked(value: Any) -> Any:
    """The value without its secrets, cut to what can be shown of it."""
    if isinstance(value, dict):
        items = islice(value.items(), _LONGEST)
        return {_masked(key): "***" if is_secret((key,)) else _masked(item) for key, item in items}
    if isinstance(value, list):
        return [_masked(item) for item in value[:_LONGEST]]
    return without_passwords(value[:_LONGEST_SEARCHED])[:_LONGEST] if isinstance(value, str) else value
