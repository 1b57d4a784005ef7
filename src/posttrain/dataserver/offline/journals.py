"""Opens a journal to read it: nothing is made there, and nothing changed, whoever may be writing to it."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, StaticPool, create_engine, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import reason_of
from posttrain.dataserver.journal.tables import SCHEMA_VERSION, grades, schema_version
from posttrain.errors import ConfigError, DataError, ServerError

_BUSY_SECONDS = 10
_POSTGRESQL = {"connect_timeout": 5, "application_name": "toolkit-rl-regrade"}


@contextmanager
def journal_to_read(config: JournalConfig) -> Iterator[Engine]:
    """The database of a journal that is there.

    Raises:
        DataError: there is no such file, or it holds no journal.
        ConfigError: another version of the toolkit wrote it.
        ServerError: PostgreSQL cannot be reached, or refuses.
    """
    if config.url is None:
        place, engine = str(config.path), _sqlite(config.path)
    else:
        engine = _postgresql(config.url)
        place = engine.url.render_as_string()
    try:
        _require_journal(engine, place)
        yield engine
    except SQLAlchemyError as error:
        kind = DataError if config.url is None else ServerError
        raise kind(f"journal: {place} cannot be read: {reason_of(error)}") from None
    finally:
        engine.dispose()


def _sqlite(path: Path) -> Engine:
    if not path.is_file():
        raise DataError(f"there is no journal {path}; name one, or a .jsonl file that toolkit-rl-grade wrote")
    uri = f"{path.absolute().as_uri()}?{_access(path)}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)
        connection.execute("PRAGMA query_only=ON")
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=StaticPool)


def _access(path: Path) -> str:
    """How to open a database without leaving a trace."""
    if Path(f"{path}-wal").exists():
        # A server is writing, or was killed; one who only reads leaves that file to the next server.
        return "mode=ro"
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        # SQLite makes two files beside it, which only one who may write takes away again.
        return "mode=rw"
    return "mode=ro&immutable=1"


def _postgresql(url: str) -> Engine:
    try:
        return create_engine(url, connect_args=_POSTGRESQL, execution_options={"postgresql_readonly": True})
    except ModuleNotFoundError:
        raise ConfigError("journal.url: PostgreSQL needs the package psycopg: pip install 'psycopg[binary]'") from None


def _require_journal(engine: Engine, place: str) -> None:
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        if schema_version.name not in tables or grades.name not in tables:
            raise DataError(f"journal: {place} holds no journal")
        version = connection.scalar(select(schema_version.c.version))
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"journal: {place} has tables of version {version}, and this toolkit reads version {SCHEMA_VERSION}; use "
            "the toolkit that wrote it"
        )
