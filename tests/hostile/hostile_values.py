"""Hostile input for everything that reads untrusted data, and the check that it is accepted or refused clearly.

Every test run tries a few examples of each property; tests marked `long` try many more.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from posttrain.errors import ConfigError, DataError

# Control characters (except \n), line separators, bidirectional controls and lone surrogates.
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_LONGEST_LINE = 2100
_MOST_LINES = 25


def profiles(quick: int, long: int) -> pytest.MarkDecorator:
    """Parametrize `examples`: how many a quick run tries, and how many a long one."""
    cases = [pytest.param(quick, id="quick"), pytest.param(long, id="long", marks=pytest.mark.long)]
    return pytest.mark.parametrize("examples", cases)


def tried(examples: int) -> Any:
    """Hypothesis settings for a property inside a test; deterministic, so that a failing test keeps failing."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=checks)


def refusal_of(action: Callable[[], object], *, seconds: float = 2.0) -> str | None:
    """Return the message of the refusal, or None if the input is accepted.

    Any exception other than ConfigError and DataError propagates and fails the test. So does using more than
    `seconds` of CPU time.
    """
    started = time.thread_time()
    message = None
    try:
        action()
    except (ConfigError, DataError) as error:
        message = str(error)
    assert time.thread_time() - started < seconds
    if message is not None:
        require_readable(message)
    return message


def require_readable(message: str) -> None:
    """Check that the message is readable and safe to print in any terminal."""
    lines = message.split("\n")
    assert message.strip()
    assert len(lines) <= _MOST_LINES, lines
    assert max(map(len, lines)) <= _LONGEST_LINE, max(lines, key=len)[:200]
    assert not STEERS.search(message), ascii(message)


ODD_TEXTS = [
    "",
    " ",
    "\0",
    "\x1b[31mred\x1b[0m",
    "\r\nfake: line",
    "\u202egpj.exe",
    "\ud800",
    "\udcff",
    "\u2028",
    "\ufeff",
    "x" * 5000,
    "../../etc/passwd",
    "~nobody/x",
    "{0.__class__.__mro__}",
    "%(name)s%n",
    "{{ ''.__class__ }}",
    "[/bold][red]",
    "<|im_end|>",
    "é" * 300,
    "1e5",
    "yes",
    "-",
    "nan",
]
NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**99, 1e308, -1e-308, 0.5, -0.0]

texts = st.sampled_from(ODD_TEXTS) | st.text(st.characters(exclude_categories=()), max_size=8)
scalars = (
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.integers() | st.floats(allow_nan=False) | texts
).filter(lambda value: not (isinstance(value, float) and abs(value) == float("inf")))
plain_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
"""Values that JSON can represent."""


def nested(depth: int) -> str:
    """JSON lists nested to this depth."""
    return "[" * depth + "]" * depth


ODD_JSON = [
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 4000,
    '"\\ud800"',
    '{"a": 1, "a": 2}',
    '"' + "x" * 5000 + '"',
    nested(90),
    nested(5000),
    "[" * 100_000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    '"\\u0000\\u001b[31m"',
    "'single'",
    "01",
    "+1",
    "//",
    "undefined",
    "\u00a0",
]
json_values = st.sampled_from(ODD_JSON) | plain_values.map(lambda value: json.dumps(value))
"""JSON text, some of it invalid."""


def json_objects(keys: list[str]) -> st.SearchStrategy[str]:
    """JSON objects with some of these keys and others; keys may be duplicated."""
    names = st.sampled_from(keys) | texts
    pairs = st.lists(st.tuples(names, json_values), max_size=5)
    return pairs.map(lambda pairs: "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}")
