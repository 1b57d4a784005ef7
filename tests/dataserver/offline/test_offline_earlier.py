"""Earlier grades are read from a file or a journal, which is never changed."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from offline_cases import write_journal, write_lines
from sqlalchemy import text

from dataserver.postgres import PostgresServer
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import journal_to_read, open_database
from posttrain.dataserver.journal.reader import RowFilter
from posttrain.dataserver.offline.earlier import Earlier, earlier_completions
from posttrain.errors import ConfigError, ToolkitError

EVERYTHING = RowFilter()


def graded(number: int, **changes: Any) -> dict[str, Any]:
    """An output line of toolkit-rl-grade."""
    return {
        "input_line": number,
        "dataset": "sums",
        "sample_id": f"sums:{number}:abc",
        "iteration": number,
        "stage": "early",
        "status": "ok",
        "reward": 0.5,
        "reason": "",
        "components": {"one": {"score": 0.5, "weight": 1.0, "status": "ok", "ms": 1.0, "detail": "as told"}},
        "prompt": f"sums {number}?",
        "gold": "x",
        "completion": f"0.5 {number}",
        "completion_tokens": 3,
        "truncated": False,
        **changes,
    }


LINES = [
    graded(1),
    graded(2, status="abstain", reward=None, reason="one: no", dataset="words", sample_id="words:2:abc"),
    graded(3, completion_tokens=None, truncated=None),
]


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path | None, JournalConfig]:
    """The same three completions in each kind of store: the source file, if any, and the config's journal."""
    if request.param == "file":
        return write_lines(tmp_path / "graded.jsonl", LINES), JournalConfig(path=tmp_path / "none.sqlite")
    config = JournalConfig(path=tmp_path / "journal.sqlite")
    if request.param == "postgresql":
        config = JournalConfig(url=request.getfixturevalue("postgres").new_database())
    write_journal(config, LINES)
    return None, config


def read(source: Path | None, journal: JournalConfig, chosen: RowFilter = EVERYTHING) -> list[Earlier]:
    """The chosen completions, as many as were counted."""
    with earlier_completions(source, journal, chosen) as (count, completions):
        found = list(completions)
        assert count == len(found)
        return found


def refusal(source: Path | None, journal: JournalConfig, chosen: RowFilter = EVERYTHING) -> str:
    with pytest.raises(ToolkitError) as caught:
        read(source, journal, chosen)
    return str(caught.value)


def sqlite_at(path: Path) -> JournalConfig:
    """A config journal other than `path`, which is the source."""
    return JournalConfig(path=path.with_name("none.sqlite"))


def test_a_journal_and_a_file_hold_the_same(kept: tuple[Path | None, JournalConfig]):
    first, second, third = read(*kept)
    assert (first.sample_id, first.text, first.prompt, first.iteration) == ("sums:1:abc", "0.5 1", "sums 1?", 1)
    assert (first.status, first.reward, first.components["one"].detail) == ("ok", 0.5, "as told")
    assert (first.completion_tokens, first.truncated, first.is_whole) == (3, False, True)
    assert (second.status, second.reward) == ("abstain", None)
    assert (third.completion_tokens, third.truncated) == (None, None)
    assert [each.number for each in (first, second, third)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        (RowFilter(dataset="words"), [2]),
        (RowFilter(status="ok"), [1, 3]),
        (RowFilter(first_iteration=2), [2, 3]),
        (RowFilter(last_iteration=2), [1, 2]),
        (RowFilter(first_iteration=2, last_iteration=2, status="abstain", dataset="words"), [2]),
    ],
)
def test_filters_choose_alike(kept: tuple[Path | None, JournalConfig], chosen: RowFilter, numbers: list[int]):
    assert [each.number for each in read(*kept, chosen)] == numbers


def test_a_run_is_chosen_of_a_journal(tmp_path: Path):
    journal = JournalConfig(path=tmp_path / "journal.sqlite")
    write_journal(journal, LINES[:1], run_id="a")
    write_journal(journal, LINES[1:], run_id="b")
    assert [each.number for each in read(None, journal, RowFilter(run_id="b"))] == [2, 3]
    assert refusal(None, journal, RowFilter(run_id="c")) == (
        "the journal contains no such completions; its runs are 'b' (2 completions), 'a' (1 completion)"
    )


def test_a_file_knows_no_runs(tmp_path: Path):
    path = write_lines(tmp_path / "graded.jsonl", LINES)
    assert refusal(path, sqlite_at(path), RowFilter(run_id="b")) == (
        f"--run: only a journal has runs, and {path} is not one; leave --run out"
    )
    assert refusal(path, sqlite_at(path), RowFilter(dataset="other")) == f"{path} contains no such completions"


def test_a_journal_can_be_named_whatever_its_ending(tmp_path: Path):
    path = tmp_path / "old.jsonl"
    write_journal(JournalConfig(path=path), LINES)
    assert [each.place for each in read(path, sqlite_at(path))] == ["journal row 1", "journal row 2", "journal row 3"]


def test_a_part_of_a_completion_is_no_completion(tmp_path: Path):
    journal = JournalConfig(path=tmp_path / "journal.sqlite", max_completion_chars=200)
    write_journal(journal, [graded(1, completion="x" * 200), graded(2, completion="x" * 201)])
    assert [each.is_whole for each in read(None, journal)] == [True, False]


def everything_in(folder: Path) -> dict[str, tuple[int, str]]:
    """The modification time and content hash of each file."""
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.iterdir())
    }


def test_a_journal_that_nobody_has_open_is_left_as_it_was(tmp_path: Path):
    journal = JournalConfig(path=tmp_path / "journal.sqlite")
    write_journal(journal, LINES)
    before = everything_in(tmp_path)
    assert list(before) == ["journal.sqlite"]
    assert len(read(None, journal)) == 3
    assert everything_in(tmp_path) == before


def test_a_journal_that_is_being_written_to_is_read_up_to_where_it_was(tmp_path: Path):
    journal = JournalConfig(path=tmp_path / "journal.sqlite")
    engine = open_database(journal)
    with engine.connect():
        write_journal(journal, LINES[:2])
        with earlier_completions(None, journal, EVERYTHING) as (count, completions):
            write_journal(journal, LINES[2:], run_id="later")
            assert (count, [each.number for each in completions]) == (2, [1, 2])
        # All rows are still in the WAL beside the file.
        assert (tmp_path / "journal.sqlite-wal").stat().st_size > 0
        log = everything_in(tmp_path)["journal.sqlite-wal"]
        assert len(read(None, journal)) == 3
        assert everything_in(tmp_path)["journal.sqlite-wal"] == log
    engine.dispose()


def test_what_a_killed_server_left_is_read_and_left_to_the_next_server(tmp_path: Path):
    alive, left = tmp_path / "alive", tmp_path / "left"
    left.mkdir()
    engine = open_database(JournalConfig(path=alive / "journal.sqlite"))
    with engine.connect():
        write_journal(JournalConfig(path=alive / "journal.sqlite"), LINES)
        for name in ("journal.sqlite", "journal.sqlite-wal"):
            (left / name).write_bytes((alive / name).read_bytes())
    engine.dispose()
    before = everything_in(left)
    assert len(read(None, JournalConfig(path=left / "journal.sqlite"))) == 3
    assert {name: everything_in(left)[name] for name in before} == before


def test_a_journal_that_is_not_there_is_not_made(tmp_path: Path):
    path = tmp_path / "folder/journal.sqlite"
    assert refusal(None, JournalConfig(path=path)) == (
        f"there is no journal {path}; name one, or a .jsonl file that toolkit-rl-grade wrote"
    )
    assert refusal(path, JournalConfig()) == f"no such file: {path}"
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_no_journal_is_told(tmp_path: Path, postgres: PostgresServer):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    before = path.read_bytes()
    assert refusal(path, JournalConfig()) == f"journal: {path} contains no journal"
    assert path.read_bytes() == before
    url = postgres.new_database()
    assert refusal(None, JournalConfig(url=url)) == f"journal: {url} contains no journal"


def test_a_file_that_is_no_database_is_told(tmp_path: Path):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert f"journal: {path} cannot be read: " in refusal(path, JournalConfig())
    path.write_text("notes\n")
    assert f"journal: {path} cannot be read: file is not a database" in refusal(None, JournalConfig(path=path))


@pytest.mark.parametrize(("version", "age"), [(0, "an older"), (99, "a newer")])
def test_a_journal_of_another_version_is_told_and_not_read(version: int, age: str, tmp_path: Path):
    journal = JournalConfig(path=tmp_path / "journal.sqlite")
    write_journal(journal, LINES)
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as connection:
        connection.execute("UPDATE journal_schema SET version = ?", (version,))
        connection.execute("ALTER TABLE grades RENAME COLUMN reward TO score")
    before = everything_in(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read(None, journal)
    assert str(caught.value) == (
        f"journal: {journal.path} was written by {age} version of the toolkit (its tables have version {version}, this "
        "one uses 5); name another database, or use that version"
    )
    assert everything_in(tmp_path) == before


def test_an_empty_journal_is_told(tmp_path: Path):
    journal = JournalConfig(path=tmp_path / "journal.sqlite")
    write_journal(journal, [])
    assert refusal(None, journal) == "the journal contains no completions"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_nothing_can_be_written_to_a_journal_that_is_read(kind: str, tmp_path: Path, request: pytest.FixtureRequest):
    journal = JournalConfig(path=tmp_path / "journal.sqlite")
    if kind == "postgresql":
        journal = JournalConfig(url=request.getfixturevalue("postgres").new_database())
    write_journal(journal, LINES)
    with (
        pytest.raises(ToolkitError, match=r"read-?only"),
        journal_to_read(journal) as engine,
        engine.begin() as connection,
    ):
        connection.execute(text("DELETE FROM grades"))
    assert len(read(None, journal)) == 3


def test_a_postgresql_server_that_is_gone_is_told():
    gone = "postgresql+psycopg://journal@127.0.0.1:9/journal"
    assert f"journal: {gone} cannot be read: " in refusal(None, JournalConfig(url=gone))


def test_lines_that_were_never_graded_are_told(tmp_path: Path):
    path = write_lines(
        tmp_path / "c.jsonl", [{"prompt": "sums 1?", "completion": "1"}, graded(2), "{", graded(4, status="fine")]
    )
    assert refusal(path, JournalConfig()).splitlines() == [
        f"{path} was not written by toolkit-rl-grade:",
        f"  {path}:1: dataset: Field required",
        f"  {path}:3: not JSON at column 2: Expecting property name enclosed in double quotes",
        f"  {path}:4: status: Input should be 'ok', 'abstain' or 'error'",
    ]
    write_lines(path, [{"completion": "1"}] * 25)
    assert refusal(path, JournalConfig()).splitlines()[-1] == "  ... and 5 more"
