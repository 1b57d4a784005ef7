"""Journals in SQLite and in PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.reader import JournalReader
from posttrain.dataserver.journal.writer import JournalWriter


@pytest.fixture
def sqlite_config(tmp_path: Path) -> JournalConfig:
    """A journal in a file that does not exist yet."""
    return JournalConfig(path=tmp_path / "journal.sqlite")


@pytest.fixture(params=["sqlite", "postgresql"])
def config(request: pytest.FixtureRequest) -> JournalConfig:
    """A journal that does not exist yet: once in SQLite, once in PostgreSQL."""
    if request.param == "sqlite":
        return request.getfixturevalue("sqlite_config")
    return JournalConfig(url=request.getfixturevalue("postgres").new_database())


@pytest.fixture
def engine(config: JournalConfig) -> Iterator[Engine]:
    """The opened database of `config`."""
    engine = open_database(config)
    yield engine
    engine.dispose()


@pytest.fixture
def writer(engine: Engine, config: JournalConfig) -> Iterator[JournalWriter]:
    """Writes to `engine`; closed at the end."""
    writer = JournalWriter(engine, config)
    yield writer
    writer.close()


@pytest.fixture
def reader(engine: Engine) -> JournalReader:
    """Reads what `writer` wrote."""
    return JournalReader(engine)
