"""Remove secrets from whatever is shown or logged."""

import base64
import json
import logging
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from urllib.parse import quote, quote_plus

# Matches names such as HF_TOKEN, WANDB_API_KEY, PGPASSWORD and JUDGE_KEY.
_SECRET_VARIABLE = re.compile(r"(TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|KEY)$", re.I)
# Anything shorter is a common word, not a secret.
SHORTEST_SECRET = 8

# Each part has a maximum length, so that the search takes time linear in the text.
_WEB_USER = re.compile(r"""(https?:/{1,2})[^/\s"']{1,500}@""", re.I)
# A database's user name is not secret. A password may contain a slash, though none should.
_PASSWORD = re.compile(r"""([a-z][a-z0-9+.-]{0,30}:/{1,2}[^/\s:@]{0,100}):[^\s"']{1,500}@""", re.I)

_hidden_variables: set[str] = set()


def hide_variable(name: str) -> None:
    """Treat the value of this variable as a secret from now on, whatever its name."""
    _hidden_variables.add(name)


def known_secrets() -> frozenset[str]:
    """Values of the environment variables that are named like secrets or were given to `hide_variable`."""
    return _values_of(filter(_SECRET_VARIABLE.search, os.environ)) | _values_of(_hidden_variables)


def hidden(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` for each secret, whether written plainly or as in JSON, Python, URLs or base64."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = _however_written(secret).sub("***", text)
    return text


def without_passwords(text: str) -> str:
    """The text without the passwords in its URLs; http(s) URLs lose the user too, which may be a token."""
    return _PASSWORD.sub(r"\1:***@", _WEB_USER.sub(r"\1***@", text))


def without_secrets(text: str, secrets: Iterable[str] | None = None) -> str:
    """The text without `secrets` (by default those of the environment) and without the passwords in its URLs."""
    return without_passwords(hidden(text, known_secrets() if secrets is None else secrets))


class DiscreetFormatter(logging.Formatter):
    """Formats log lines and their tracebacks with another formatter, and removes the secrets."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner
        # Searching the whole environment takes longer than all other work on a line.
        self._secrets = known_secrets()

    def format(self, record: logging.LogRecord) -> str:
        """The formatted line without secrets."""
        # A config, which may name more variables, is read after logging is set up.
        return without_secrets(self._inner.format(record), self._secrets | _values_of(_hidden_variables))


class DiscreetHandler(logging.Handler):
    """Writes log lines without secrets to what stderr is by then: a run copies it, and a progress bar moves aside."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(DiscreetFormatter(formatter))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            with suppress(BrokenPipeError):
                sys.stderr.write(self.format(record) + "\n")
                sys.stderr.flush()
        except Exception:  # noqa: BLE001  # as all handlers do
            self.handleError(record)


def _values_of(names: Iterable[str]) -> frozenset[str]:
    # Copied, since another thread may read a config meanwhile and add names.
    values = [os.environ.get(name, "") for name in list(names)]
    return frozenset(value for value in values if len(value) >= SHORTEST_SECRET)


@lru_cache
def _however_written(secret: str) -> re.Pattern[str]:
    encoded = base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode().rstrip("=")
    spellings = {secret, json.dumps(secret)[1:-1], quote(secret), quote(secret, safe=""), quote_plus(secret), encoded}
    return re.compile("|".join(map(_however_escaped, sorted(spellings, key=len, reverse=True))))


def _however_escaped(spelling: str) -> str:
    """A pattern that also matches in nested JSON and nested reprs, each of which escapes quotes and backslashes."""
    letters = (re.escape(letter) for letter in spelling)
    return "".join(r"\\+" if letter == r"\\" else rf"\\*{letter}" if letter in "\"'/" else letter for letter in letters)
