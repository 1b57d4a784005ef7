"""Opening a journal: what is created and what is refused."""

import re
from pathlib import Path

import pytest
from journal_processes import race
from sqlalchemy import Engine, func, inspect, select, update

from dataserver.postgres import PostgresServer
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import SCHEMA_VERSION, open_database, schema_version
from posttrain.errors import ConfigError, ServerError


def test_a_new_journal_has_all_tables_and_may_be_opened_again(engine: Engine, config: JournalConfig):
    again = open_database(config)
    assert {"grades", "plans", "journal_schema"} <= set(inspect(again).get_table_names())
    assert {index["name"] for index in inspect(again).get_indexes("grades")} >= {"grades_by_iteration"}
    again.dispose()


@pytest.mark.parametrize(("version", "age"), [(SCHEMA_VERSION - 1, "an older"), (SCHEMA_VERSION + 1, "a newer")])
def test_a_journal_of_another_version_is_refused(version: int, age: str, engine: Engine, config: JournalConfig):
    with engine.begin() as connection:
        connection.execute(update(schema_version).values(version=version))
    message = rf"written by {age} version of the toolkit \(its tables have version {version}, this one"
    with pytest.raises(ConfigError, match=message):
        open_database(config)


def _open(config: JournalConfig, _: int) -> None:
    open_database(config).dispose()


def test_four_processes_may_make_the_same_journal_at_once(config: JournalConfig):
    race(_open, config)
    engine = open_database(config)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(schema_version)) == 1
    engine.dispose()


def test_sqlite_lets_readers_and_the_writer_work_at_once(sqlite_config: JournalConfig):
    engine = open_database(sqlite_config)
    with engine.connect() as connection:
        settings = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    engine.dispose()
    assert settings == ["wal", 1]  # 1 is NORMAL


def test_a_folder_that_is_missing_is_made(tmp_path: Path):
    config = JournalConfig(path=tmp_path / "runs" / "1" / "journal.sqlite")
    open_database(config).dispose()
    assert config.path.is_file()


def test_a_file_that_is_something_else_is_refused_and_left_alone(sqlite_config: JournalConfig):
    sqlite_config.path.write_text("a diary, not a database; " * 100)
    with pytest.raises(ConfigError, match="cannot be opened: file is not a database"):
        open_database(sqlite_config)
    assert sqlite_config.path.read_text().startswith("a diary")


def test_a_folder_under_a_file_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created: "):
        open_database(JournalConfig(path=tmp_path / "file" / "journal.sqlite"))


def test_a_server_that_is_not_there_is_told_by_its_address():
    url = "postgresql+psycopg://anna@127.0.0.1:1/db"
    with pytest.raises(ServerError, match=f"journal: {re.escape(url)} cannot be opened: .*refused"):
        open_database(JournalConfig(url=url))


def test_the_password_comes_from_the_environment(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    url = postgres.new_database()
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(ServerError, match="password authentication failed"):
        open_database(JournalConfig(url=url))


def test_a_postgresql_database_that_is_not_utf8_is_refused(postgres: PostgresServer):
    with pytest.raises(ConfigError, match="has the encoding LATIN1; create it again with ENCODING 'UTF8'"):
        open_database(JournalConfig(url=postgres.latin_database()))
