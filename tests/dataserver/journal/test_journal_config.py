"""Where a journal may be stored."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from posttrain.config.load import load_config
from posttrain.config.strict import StrictModel
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.errors import ConfigError


class Server(StrictModel):
    """A config with a journal in it."""

    journal: JournalConfig = JournalConfig()
    """The journal."""


def test_a_journal_without_settings_lies_beside_the_config_file(tmp_path: Path):
    (tmp_path / "server.yaml").write_text("journal: {}")
    journal = load_config(tmp_path / "server.yaml", Server).journal
    assert (journal.path, journal.url, journal.enabled) == (tmp_path / "journal.sqlite", None, True)


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://anna:hunter2@host/db", "postgresql+psycopg://anna@host/db?password=hunter2"]
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str, tmp_path: Path):
    (tmp_path / "server.yaml").write_text(yaml.safe_dump({"journal": {"url": url}}))
    with pytest.raises(ConfigError, match="PGPASSWORD") as refusal:
        load_config(tmp_path / "server.yaml", Server)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://anna@host/db", "stored in PostgreSQL"),
        ("sqlite:///journal.sqlite", "stored in PostgreSQL"),
        ("postgresql+psycopg://anna@host", "stored in PostgreSQL"),
        ("host/db", "not a database URL"),
        ("postgresql+psycopg://anna@host:port/db", "not a database URL"),
        ("", "not a database URL"),
    ],
)
def test_other_places_are_refused(url: str, message: str):
    with pytest.raises(ValidationError, match=message):
        JournalConfig(url=url)


def test_a_url_may_say_how_to_connect():
    url = "postgresql+psycopg://anna@host:5433/db?sslmode=verify-full"
    assert JournalConfig(url=url).url == url
