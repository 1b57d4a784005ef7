"""Opens the journal's database, makes its tables, and hides where SQLite and PostgreSQL differ."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, Table, create_engine, event, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.tables import SCHEMA_VERSION, metadata, schema_version
from posttrain.errors import ConfigError, ServerError

_BUSY_SECONDS = 10
# Some completions of 2 kB share a page; one takes a page of SQLite's usual size alone, and a part of another one.
_PAGE_BYTES = 16_384
# A server that is gone must be noticed soon: rows wait in memory meanwhile. Seconds, and milliseconds.
_POSTGRESQL = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "application_name": "toolkit-journal"}
_CREATORS_LOCK = 7_304_521_882  # any number, the same in every process

# One encoder: json.dumps makes a new one in each call that differs from its defaults.
_write_json = json.JSONEncoder(ensure_ascii=False).encode


def open_database(config: JournalConfig) -> Engine:
    """Connect to the journal's database, and make the tables that it lacks. Safe in several processes at once.

    Open it after forking, not before: processes cannot share a connection.

    Raises:
        ConfigError: the file cannot be opened, or the tables there are of another version.
        ServerError: PostgreSQL cannot be reached, or refuses.
    """
    engine = _sqlite(config) if config.url is None else _postgresql(config.url)
    place = str(config.path) if config.url is None else engine.url.render_as_string()
    try:
        with engine.begin() as connection:
            _prepare(connection, place)
    except ConfigError:
        engine.dispose()
        raise
    except SQLAlchemyError as error:
        engine.dispose()
        kind = ConfigError if config.url is None else ServerError
        raise kind(f"journal: {place} cannot be opened: {reason_of(error)}") from None
    return engine


def insert_into(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that knows ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


@contextmanager
def connected(engine: Engine, purpose: str, survives_power_cuts: bool = False) -> Iterator[Connection]:
    """A connection; with `survives_power_cuts` its commits wait for the disk, as PostgreSQL's always do.

    Raises:
        ServerError: what is asked of the database fails; the message begins with the purpose.
    """
    try:
        with engine.connect() as connection:
            raw = connection.connection.driver_connection
            if survives_power_cuts and isinstance(raw, sqlite3.Connection):
                raw.execute("PRAGMA synchronous=FULL")
            yield connection
    except SQLAlchemyError as error:
        raise ServerError(f"journal: {purpose}: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """The database's own words, on one line."""
    own = getattr(error, "orig", None) or error
    return " ".join(str(own).split())[:300] or type(own).__name__


def _sqlite(config: JournalConfig) -> Engine:
    try:
        config.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"journal: {config.path.parent} cannot be made: {error.strerror}") from None
    url = URL.create("sqlite", database=str(config.path))
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS}, json_serializer=_write_json)

    @event.listens_for(engine, "connect")
    def _set_up(raw: sqlite3.Connection, _: object) -> None:
        raw.execute(f"PRAGMA page_size={_PAGE_BYTES}")  # of a database that is made now
        _write_ahead(raw)
        raw.execute("PRAGMA synchronous=NORMAL")

    return engine


@retry(
    retry=retry_if_exception_type(sqlite3.OperationalError),
    wait=wait_fixed(0.05),
    stop=stop_after_delay(_BUSY_SECONDS),
    reraise=True,
)
def _write_ahead(raw: sqlite3.Connection) -> None:
    """Switch to WAL, for which SQLite does not wait where another process makes the same file at this moment."""
    raw.execute("PRAGMA journal_mode=WAL")


def _postgresql(url: str) -> Engine:
    try:
        return create_engine(url, connect_args=_POSTGRESQL, pool_pre_ping=True, json_serializer=_write_json)
    except ModuleNotFoundError:
        raise ConfigError("journal.url: PostgreSQL needs the package psycopg: pip install 'psycopg[binary]'") from None


def _prepare(connection: Connection, place: str) -> None:
    if connection.dialect.name == "postgresql":
        # CREATE … IF NOT EXISTS is no protection against another creator at the same moment.
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATORS_LOCK})"))
        encoding = connection.scalar(text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise ConfigError(f"journal: {place} has the encoding {encoding}; make it anew with ENCODING 'UTF8'")
    _check_version(connection, place)
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            connection.execute(CreateIndex(index, if_not_exists=True))


def _check_version(connection: Connection, place: str) -> None:
    connection.execute(CreateTable(schema_version, if_not_exists=True))
    ours = insert_into(connection, schema_version).values(id=1, version=SCHEMA_VERSION)
    connection.execute(ours.on_conflict_do_nothing())
    found = connection.scalars(select(schema_version.c.version)).one()
    if found != SCHEMA_VERSION:
        age = "an older" if found < SCHEMA_VERSION else "a newer"
        raise ConfigError(
            f"journal: {place} was written by {age} toolkit (its tables have version {found}, this one has "
            f"{SCHEMA_VERSION}); name another database, or use that toolkit"
        )
