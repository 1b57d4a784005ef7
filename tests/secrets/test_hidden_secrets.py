"""Secrets are hidden in all that is shown or logged."""

import base64
import io
import json
import logging
from contextlib import redirect_stderr
from itertools import count
from typing import Any
from urllib.parse import quote

import pytest
from canaries import SECRETS, secrets_in
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from posttrain.base.secrets import (
    DiscreetFormatter,
    DiscreetHandler,
    hidden,
    hide_variable,
    known_secrets,
    without_passwords,
    without_secrets,
)
from posttrain.config.sections.listen import ListenConfig
from posttrain.dataserver.graders.http import HttpGrader
from posttrain.dataserver.graders.llm_judge import LlmJudge
from posttrain.rl.config import DataserverSection

TOKEN = SECRETS["JUDGE_AUTH"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@host:9000/x", "http://***@host:9000/x"),
        ("https://ghp_token@host/x", "https://***@host/x"),
        ("HTTP://u:p@h", "HTTP://***@h"),
        ("https://user:p@ss@host/x", "https://***@host/x"),
        ("postgresql://u:p@ss-word@host", "postgresql://u:***@host"),
        ("http:/user:secret@host/x.jsonl", "http:/***@host/x.jsonl"),  # a URL that was treated as a path
        ("postgresql+psycopg://journal:se/cret@host/db", "postgresql+psycopg://journal:***@host/db"),
        ("postgresql+psycopg://journal@host/db", "postgresql+psycopg://journal@host/db"),
        ("redis://:secret@host", "redis://:***@host"),
        ("http://host:9000/x?a=1", "http://host:9000/x?a=1"),
        ("see http://a:1/b, or mail to me@host", "see http://a:1/b, or mail to me@host"),
        ("{'url': 'http://h:80', 'mail': 'a@b'}", "{'url': 'http://h:80', 'mail': 'a@b'}"),
    ],
)
def test_urls_are_shown_without_their_passwords(url: str, shown: str) -> None:
    assert without_passwords(url) == shown


@pytest.mark.parametrize(
    "written",
    [
        TOKEN,
        json.dumps(f"Bearer {TOKEN}"),
        json.dumps(json.dumps(TOKEN)[1:-1])[:3] + TOKEN,
        repr([TOKEN]),
        quote(TOKEN, safe=""),
        quote(TOKEN),
        base64.b64encode(TOKEN.encode()).decode(),
    ],
)
def test_a_secret_is_hidden_however_it_is_written(written: str) -> None:
    shown = hidden(f"it said {written}!", [TOKEN])

    assert secrets_in(shown.encode()) == []
    assert shown.startswith("it said ") and "***" in shown


# Secrets are replaced by asterisks.
letters = st.characters(exclude_characters="*", exclude_categories=["Cs"])


@given(st.text(letters, min_size=8, max_size=40), st.text(letters, max_size=20), st.text(letters, max_size=20))
def test_no_secret_is_left_in_json_whatever_its_letters(secret: str, before: str, after: str) -> None:
    written = json.dumps({"header": f"{before}{secret}{after}"})

    assert json.dumps(secret)[1:-1] not in hidden(written, [secret])


def test_a_text_without_secrets_stays_as_it_is() -> None:
    text = 'a "text" with http://host:80/x and a token_env: HF_TOKEN'

    assert hidden(text, [TOKEN]) == hidden(text, []) == hidden(text, [""]) == without_secrets(text, [TOKEN]) == text


def test_secrets_are_known_by_the_names_of_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {name: value for name, value in SECRETS.items() if name != "JUDGE_AUTH"}
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)
    before = known_secrets()
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "a long enough value")
    monkeypatch.setenv("SHORT_TOKEN", "abc1234")  # 7 letters: too short to tell from other text

    assert known_secrets() - before == set(named.values())


# A variable once hidden stays hidden in this process, so each test uses its own.
numbers = count()


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a variable that holds a token but does not sound like it."""
    name = f"MY_JUDGE_{next(numbers)}_AUTH"
    monkeypatch.setenv(name, TOKEN)
    return name


def record_of(text: str) -> logging.LogRecord:
    return logging.LogRecord("a", logging.DEBUG, "file", 1, text, None, None)


def test_a_variable_that_is_to_be_hidden_is_a_secret_however_it_is_called(variable: str) -> None:
    assert TOKEN not in known_secrets()

    hide_variable(variable)

    assert TOKEN in known_secrets()
    assert without_secrets(f"Bearer {TOKEN}") == "Bearer ***"


def test_of_hidden_variables_too_what_is_short_or_missing_is_no_secret(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_variable(variable)
    monkeypatch.setenv(variable, "abc1234")
    assert without_secrets("an abc1234") == "an abc1234"
    monkeypatch.delenv(variable)
    assert without_secrets("an abc1234") == "an abc1234"


def test_a_log_that_was_set_up_before_hides_what_is_hidden_later(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    formatter = DiscreetFormatter(logging.Formatter("%(message)s"))
    assert formatter.format(record_of(f"sent {TOKEN}")) == f"sent {TOKEN}"

    hide_variable(variable)
    assert formatter.format(record_of(f"sent {TOKEN}")) == "sent ***"

    monkeypatch.setenv(variable, TOKEN[::-1])
    assert formatter.format(record_of(f"sent {TOKEN[::-1]}")) == "sent ***"


def test_log_lines_go_to_the_stderr_of_their_time() -> None:
    first, second = io.StringIO(), io.StringIO()
    with redirect_stderr(first):
        handler = DiscreetHandler(logging.Formatter("%(message)s"))
        handler.handle(record_of("one"))
    first.close()
    with redirect_stderr(second):
        handler.handle(record_of("two"))
    assert second.getvalue() == "two\n"


JUDGE = {"url": "http://127.0.0.1:9/v1", "model": "judge"}


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        (ListenConfig, {}),
        (LlmJudge, {"type": "llm_judge", **JUDGE}),
        (HttpGrader, {"type": "http", "url": "http://127.0.0.1:9/"}),
        (DataserverSection, {"url": "http://127.0.0.1:9"}),
    ],
)
def test_a_config_that_names_a_variable_has_it_hidden(
    section: type[BaseModel], keys: dict[str, Any], variable: str
) -> None:
    section.model_validate({**keys, "token_env": variable})

    assert TOKEN in known_secrets()


def test_a_config_that_is_refused_for_another_key_has_its_variable_hidden_all_the_same(variable: str) -> None:
    with pytest.raises(ValidationError, match="port"):
        ListenConfig.model_validate({"port": -1, "token_env": variable})

    assert TOKEN in known_secrets()


def test_a_line_of_the_log_and_its_traceback_go_through_the_sieve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", TOKEN)
    formatter = DiscreetFormatter(logging.Formatter("%(levelname)s %(message)s"))
    try:
        raise ValueError(f"Bearer {TOKEN}")
    except ValueError as error:
        record = logging.LogRecord("a", logging.ERROR, "file", 1, "sent %r to %s", (TOKEN, "http://u:p@h"), None)
        record.exc_info = (ValueError, error, error.__traceback__)

    line = formatter.format(record)

    assert line.startswith("ERROR sent '***' to http://***@h\nTraceback")
    assert line.endswith("ValueError: Bearer ***")
    assert secrets_in(line.encode()) == []
