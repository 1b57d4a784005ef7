"""Journals for adaptive sampling: in a file, and on a PostgreSQL server that is started once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.writer import JournalWriter


@pytest.fixture(params=["sqlite", "postgresql"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> JournalConfig:
    """A journal that does not exist yet."""
    if request.param == "sqlite":
        return JournalConfig(path=tmp_path / "journal.sqlite")
    return JournalConfig(url=request.getfixturevalue("postgres").new_database())


@pytest.fixture
def engine(journal: JournalConfig) -> Iterator[Engine]:
    """The database of `journal`, opened."""
    engine = open_database(journal)
    yield engine
    engine.dispose()


@pytest.fixture
def writer(engine: Engine, journal: JournalConfig) -> Iterator[JournalWriter]:
    """Writes to `engine`; closed after the test."""
    writer = JournalWriter(engine, journal)
    yield writer
    writer.close()
