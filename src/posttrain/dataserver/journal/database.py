"""Define the journal's tables, the same in SQLite and PostgreSQL, and open its database."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    QueuePool,
    StaticPool,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.errors import ConfigError, DataError, ServerError

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

SCHEMA_VERSION = 5

metadata = MetaData()

schema_version = Table(
    "journal_schema",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
)

# The short columns come first: SQLite reads a row from its start, and most queries never reach the long texts.
grades = Table(
    "grades",
    metadata,
    # SQLite autoincrements only columns declared as INTEGER.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("config_id", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("item_id", Text, nullable=False),
    Column("split", Text, nullable=False),
    Column("iteration", BigInteger, nullable=False),
    Column("stage", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("sample_id", Text, nullable=False),
    Column("row_key", Text, nullable=False),
    Column("task", Text),
    Column("slot", BigInteger),
    Column("attempt", BigInteger, nullable=False),
    Column("lowest_version", BigInteger),
    Column("highest_version", BigInteger),
    Column("temperature", Float),
    Column("origin", Text),
    Column("status", Text, nullable=False),
    Column("reward", Float),
    Column("milliseconds", Float, nullable=False),
    Column("completion_tokens", BigInteger),
    Column("truncated", Boolean),
    Column("completion_digest", Text, nullable=False),
    Column("completion_whole", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("components", JSON, nullable=False),
    Column("gold", JSON(none_as_null=True)),
    Column("prompt", Text, nullable=False),
    Column("completion", Text, nullable=False),
    UniqueConstraint("config_id", "run_id", "request_id", "item_id", name="grades_once"),
    # Covers the queries for rewards over iterations and for row statistics, so that neither reads the rows.
    Index(
        "grades_by_iteration",
        "run_id",
        "iteration",
        "split",
        "dataset",
        "status",
        "reward",
        "row_key",
        "config_id",
    ),
    Index("grades_by_dataset", "run_id", "dataset", "status", "id"),
    Index("grades_by_status", "run_id", "status", "id"),
    sqlite_autoincrement=True,
)

plans = Table(
    "plans",
    metadata,
    Column("config_id", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("iteration", BigInteger, nullable=False),
    Column("plan", JSON, nullable=False),
    PrimaryKeyConstraint("config_id", "run_id", "iteration"),
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("config_id", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("run_id", "step"),
)

step_numbers = Table(
    "step_numbers",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", Float),
    PrimaryKeyConstraint("run_id", "step", "name"),
)

step_groups = Table(
    "step_groups",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("place", Integer, nullable=False),
    Column("iteration", BigInteger),
    Column("slot", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("sample_id", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("trained", Boolean, nullable=False),
    Column("origin", Text, nullable=False),
    Column("mean_reward", Float),
    Column("age", BigInteger, nullable=False),
    PrimaryKeyConstraint("run_id", "step", "place"),
)

_BUSY_SECONDS = 10
# Several completions of 2 kB share a page; one would take a page of SQLite's default size and part of another.
_PAGE_BYTES = 16_384
# A lost server must be noticed soon, as rows wait in memory meanwhile. In seconds and in milliseconds.
_POSTGRESQL = {"connect_timeout": 5, "tcp_user_timeout": 10_000}
_CREATORS_LOCK = 7_304_521_882  # any number, the same in every process

# One shared encoder: json.dumps makes a new one for each call with other options than its defaults.
_write_json = json.JSONEncoder(ensure_ascii=False).encode


def open_database(config: JournalConfig) -> Engine:
    """Connect to the journal's database and create missing tables. Safe in several processes at once.

    Call this after forking, not before: processes cannot share a connection.

    Raises:
        ConfigError: the file cannot be opened, the tables have another version, PostgreSQL's database is not in UTF-8,
            or its driver is missing.
        ServerError: PostgreSQL cannot be reached, or refuses.
    """
    engine = _sqlite(config.path) if config.url is None else _postgresql(config.url, "toolkit-journal")
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


def memory_database() -> Engine:
    """An empty database with the journal's tables, gone with the process; threads use its one connection in turn."""
    engine = create_engine(
        "sqlite://", poolclass=QueuePool, pool_size=1, max_overflow=0, connect_args={"check_same_thread": False}
    )
    metadata.create_all(engine)
    return engine


@contextmanager
def journal_to_read(config: JournalConfig) -> Iterator[Engine]:
    """Open an existing journal for reading, also while others write to it; nothing in it is created or changed.

    Raises:
        DataError: there is no such file, it cannot be read, or the database holds no journal.
        ConfigError: another version of the toolkit wrote it, or the driver for PostgreSQL is missing.
        ServerError: PostgreSQL cannot be reached, or refuses.
    """
    if config.url is None:
        place, engine = str(config.path), _sqlite_to_read(config.path)
    else:
        engine = _postgresql(config.url, "toolkit-rl-regrade").execution_options(postgresql_readonly=True)
        place = engine.url.render_as_string()
    try:
        with engine.connect() as connection:
            if not {schema_version.name, grades.name} <= {*inspect(connection).get_table_names()}:
                raise DataError(f"journal: {place} contains no journal")
            _require_our_version(connection, place)
        yield engine
    except SQLAlchemyError as error:
        kind = DataError if config.url is None else ServerError
        raise kind(f"journal: {place} cannot be read: {reason_of(error)}") from None
    finally:
        engine.dispose()


def insert_into(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT that supports ON CONFLICT."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # only here: importing it takes a twentieth of a second

        return postgresql.insert(table)
    return sqlite.insert(table)


@contextmanager
def connected(engine: Engine, purpose: str, survives_power_cuts: bool = False) -> Iterator[Connection]:
    """A connection; with `survives_power_cuts` its commits wait for the disk, as PostgreSQL's always do.

    Raises:
        ServerError: a database operation fails; the message begins with `purpose`.
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
    """The database's own error message, on one line."""
    own = getattr(error, "orig", None) or error
    return " ".join(str(own).split())[:300] or type(own).__name__


def _sqlite(path: Path) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"journal: {path.parent} cannot be created: {error.strerror}") from None
    url = URL.create("sqlite", database=str(path))
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS}, json_serializer=_write_json)

    @event.listens_for(engine, "connect")
    def _set_up(raw: sqlite3.Connection, _: object) -> None:
        raw.execute(f"PRAGMA page_size={_PAGE_BYTES}")  # takes effect only in a new database
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
    """Switch to WAL; SQLite does not wait here by itself while another process creates the same file."""
    raw.execute("PRAGMA journal_mode=WAL")


def _sqlite_to_read(path: Path) -> Engine:
    if not path.is_file():
        raise DataError(f"there is no journal {path}; name one, or a .jsonl file that toolkit-rl-grade wrote")
    uri = f"{path.absolute().as_uri()}?{_access(path)}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)
        connection.execute("PRAGMA query_only=ON")
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=StaticPool)


def _access(path: Path) -> str:
    """URI options that open a database without leaving files behind."""
    if Path(f"{path}-wal").exists():
        # A server is writing, or was killed; a reader leaves that file to the next server.
        return "mode=ro"
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        # SQLite creates two files beside it, which only a connection that may write removes again.
        return "mode=rw"
    return "mode=ro&immutable=1"


def _postgresql(url: str, name: str) -> Engine:
    options = {**_POSTGRESQL, "application_name": name}
    try:
        return create_engine(url, connect_args=options, pool_pre_ping=True, json_serializer=_write_json)
    except ModuleNotFoundError:
        raise ConfigError("journal.url: PostgreSQL needs the package psycopg: pip install 'psycopg[binary]'") from None


def _prepare(connection: Connection, place: str) -> None:
    if connection.dialect.name == "postgresql":
        # CREATE … IF NOT EXISTS does not protect against another process that creates it at the same moment.
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATORS_LOCK})"))
        encoding = connection.scalar(text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise ConfigError(f"journal: {place} has the encoding {encoding}; create it again with ENCODING 'UTF8'")
    connection.execute(CreateTable(schema_version, if_not_exists=True))
    ours = insert_into(connection, schema_version).values(id=1, version=SCHEMA_VERSION)
    connection.execute(ours.on_conflict_do_nothing())
    _require_our_version(connection, place)
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            connection.execute(CreateIndex(index, if_not_exists=True))


def _require_our_version(connection: Connection, place: str) -> None:
    found = connection.scalars(select(schema_version.c.version)).first()
    if found != SCHEMA_VERSION:
        age = "a newer" if found is not None and found > SCHEMA_VERSION else "an older"
        raise ConfigError(
            f"journal: {place} was written by {age} version of the toolkit (its tables have version {found}, this one "
            f"uses {SCHEMA_VERSION}); name another database, or use that version"
        )
