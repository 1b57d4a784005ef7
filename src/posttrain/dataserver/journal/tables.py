"""The journal's tables, the same in SQLite and in PostgreSQL."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 1

metadata = MetaData()

schema_version = Table(
    "journal_schema",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
)

# The short columns come first: SQLite reads a row from its start, and most queries never get to the long texts.
grades = Table(
    "grades",
    metadata,
    # SQLite counts up only what is declared as INTEGER.
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
    Column("slot", BigInteger),
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
    # Holds all that rewards over iterations and the statistics of rows are made of, so that neither reads the rows.
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
