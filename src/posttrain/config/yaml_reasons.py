"""What PyYAML's syntax errors mean to the person who wrote the file."""

import re

from yaml import YAMLError
from yaml.error import MarkedYAMLError
from yaml.reader import ReaderError

# Part of PyYAML's message; what to tell; and whether to name the line where the construct began: an unclosed
# quote is noticed at the end of the file. No reason quotes a value, which may be secret.
_REASONS = (
    (r"character '\\t'", "a tab where none may stand; indent with spaces", False),
    (r"character '(.)' that", "a value cannot start with {0}; put the value in quotes", False),
    (
        "mapping values are not allowed",
        "a second `: ` in one value, or the indentation does not fit the line above; quote the value, or align the key",
        False,
    ),
    ("could not find expected ':'", "no `key: value` and no continuation; is a `: ` missing?", True),
    (
        "sequence entries are not allowed",
        "a `- ` where none can stand; start each item on its own line",
        False,
    ),
    ("mapping keys are not allowed", "a `? ` where none can stand; put the value in quotes", False),
    ("unexpected end of stream", "a quote that is never closed", True),
    ("expected ',' or ']'", "a `[` that is not closed, or a missing comma", True),
    ("expected ',' or '}'", "a `{{` that is not closed, or a missing comma", True),
    ("<block end>, but found '<scalar>'", "text after the closing quote; put all of it in one pair", False),
    (
        r"<block end>, but found '([\]}])'",
        "a `{0}` that nothing opened; remove it, or quote the value",
        False,
    ),
    ("<block end>|'<document start>'", "the indentation does not fit the lines above", False),
    (
        "undefined alias",
        "`*` refers to a `&` name above it, and there is none; put a plain value in quotes",
        False,
    ),
    ("second occurrence", "the name after `&` is taken; use another, or put a plain value in quotes", False),
    ("expected the node content", "a value is missing, or a bracket is not closed", False),
    ("another document", "`---` starts a second document; a config file holds one", False),
    (r"unknown escape character '(.)'", r"`\{0}` means nothing in double quotes; use single quotes", False),
    ("undefined tag handle", "tags (words that start with `!`) are not for config files", False),
)


def syntax_reason(error: YAMLError, text: str) -> tuple[int, str]:
    """The line, and what is wrong there, without quoting the file: it may hold a secret."""
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return line, f"a character that YAML does not allow (U+{ord(text[error.position]):04X}); remove it"
    if not isinstance(error, MarkedYAMLError):
        return 1, "not valid YAML"
    line = error.problem_mark.line + 1 if error.problem_mark else 1
    problem = error.problem or "not valid YAML"
    for pattern, reason, at_start in _REASONS:
        if found := re.search(pattern, problem):
            if at_start and error.context_mark:
                line = error.context_mark.line + 1
            return line, reason.format(*(group for group in found.groups()))
    return line, "PyYAML says: " + re.sub("'[^']*'", "'…'", problem)
