"""Remove secrets from whatever is shown or logged."""

import base64
import json
import logging
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote, quote_plus

# As HF_TOKEN, WANDB_API_KEY, PGPASSWORD or JUDGE_KEY are called.
_SECRET_VARIABLE = re.compile(r"(TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|KEY)$", re.I)
# What is shorter is a word that stands in many texts, and no secret.
SHORTEST_SECRET = 8

# Each part has a greatest length, so that a long text takes no longer than its length asks for.
_WEB_USER = re.compile(r"""(https?:/{1,2})[^/\s"']{1,500}@""", re.I)
# The user of a database is no secret. A password may hold a slash, though none should.
_PASSWORD = re.compile(r"""([a-z][a-z0-9+.-]{0,30}:/{1,2}[^/\s:@]{0,100}):[^\s"']{1,500}@""", re.I)

_hidden_variables: set[str] = set()


def hide_variable(name: str) -> None:
    """From now on what this variable holds is a secret, however the variable is called."""
    _hidden_variables.add(name)


def known_secrets() -> frozenset[str]:
    """The values of the variables that are named like secrets, or were given to `hide_variable`."""
    return _values_of(filter(_SECRET_VARIABLE.search, os.environ)) | _values_of(_hidden_variables)


def hidden(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` for each secret: as it is, and as JSON, Python, URLs and base64 write it."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = _however_written(secret).sub("***", text)
    return text


def without_passwords(text: str) -> str:
    """The text without the passwords in its URLs; those of the web lose the name too, which may be a token."""
    return _PASSWORD.sub(r"\1:***@", _WEB_USER.sub(r"\1***@", text))


def without_secrets(text: str, secrets: Iterable[str] | None = None) -> str:
    """The text as it may be shown: without the secrets (those of the environment unless given), and without the
    passwords in its URLs."""
    return without_passwords(hidden(text, known_secrets() if secrets is None else secrets))


class DiscreetFormatter(logging.Formatter):
    """Formats log lines, with their tracebacks, by another formatter, and takes the secrets out."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner
        # To look through the whole environment takes longer than all the rest of a line.
        self._secrets = known_secrets()

    def format(self, record: logging.LogRecord) -> str:
        """The line as it may be shown."""
        # The config that names more variables is read after the log was set up.
        return without_secrets(self._inner.format(record), self._secrets | _values_of(_hidden_variables))


def _values_of(names: Iterable[str]) -> frozenset[str]:
    # A list, since another thread may read a config meanwhile.
    values = [os.environ.get(name, "") for name in list(names)]
    return frozenset(value for value in values if len(value) >= SHORTEST_SECRET)


@lru_cache
def _however_written(secret: str) -> re.Pattern[str]:
    encoded = base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode().rstrip("=")
    spellings = {secret, json.dumps(secret)[1:-1], quote(secret), quote(secret, safe=""), quote_plus(secret), encoded}
    return re.compile("|".join(map(_however_escaped, sorted(spellings, key=len, reverse=True))))


def _however_escaped(spelling: str) -> str:
    """A pattern for text in JSON within JSON, or in what Python shows of a text that it shows: each of these puts
    backslashes before quotes and backslashes."""
    letters = (re.escape(letter) for letter in spelling)
    return "".join(r"\\+" if letter == r"\\" else rf"\\*{letter}" if letter in "\"'/" else letter for letter in letters)
