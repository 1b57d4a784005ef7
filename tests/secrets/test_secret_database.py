"""The password of the journal's database opens the journal and is written nowhere."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from canaries import SECRETS, files_below, leaks, secrets_in, watched
from psycopg import sql

from dataserver.graders.services import free_port
from dataserver.postgres import postgres_server
from dataserver.serving import a_config, gold_of, serving
from running import BIN

PASSWORD = SECRETS["PGPASSWORD"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a database that requires the secret password."""
    with postgres_server(PASSWORD) as server:
        yield server.new_database()


def rows_of(url: str) -> bytes:
    """All rows of the journal's tables, as text."""
    schema = url.rpartition("%3D")[2]
    address = url.replace("+psycopg", "").partition("?")[0]
    with psycopg.connect(address, password=PASSWORD, options=f"-c search_path={schema}") as connection:
        tables = ("grades", "plans", "journal_schema")
        statements = [sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(table)) for table in tables]
        return "\n".join(row[0] for statement in statements for row in connection.execute(statement)).encode()


@pytest.mark.postgres
def test_a_journal_is_kept_with_the_password_and_without_a_trace_of_it(url: str, tmp_path: Path) -> None:
    config = a_config(tmp_path / "config", journal={"url": url}, listen={"log": "json"})
    with serving(config, environment=SECRETS) as server:
        samples = server.sample(0, 8).samples
        items = [
            {"item_id": str(sample.slot), "sample_id": sample.sample_id, "completion": gold_of(sample)}
            for sample in samples
        ]
        assert {result.status for result in server.grade(items, "a").results} == {"ok"}
        commands = str([process.cmdline() for process in server.family()]).encode()
        pages = {
            path: server.client.get(path).content
            for path in ("/meta", "/metrics", "/openapi.json", "/ui", "/ui/data", "/ui/completions")
        }
        server.end(15)

    rows = rows_of(url)
    assert rows.count(b"\n") >= 8
    assert leaks({**pages, "commands": commands, "journal": rows, **files_below(tmp_path)}) == []


@pytest.mark.postgres
@pytest.mark.parametrize("debug", [True, False])
def test_a_wrong_password_is_told_without_it(url: str, tmp_path: Path, debug: bool) -> None:
    config = a_config(tmp_path / "config", journal={"url": url})
    wrong = {**SECRETS, "PGPASSWORD": SECRETS["HF_TOKEN"]}

    ended = watched([BIN / "toolkit-rl-dataserver", config, *["--debug"] * debug], tmp_path, wrong)

    assert ended.code == 1
    assert "password authentication failed" in ended.text
    assert ("Traceback" in ended.text) == debug
    assert leaks({**ended.places, **files_below(tmp_path)}) == []


def test_a_database_that_is_away_is_told_without_the_password(tmp_path: Path) -> None:
    away = f"postgresql+psycopg://journal@127.0.0.1:{free_port()}/db"
    config = a_config(tmp_path / "config", journal={"url": away})

    served = watched([BIN / "toolkit-rl-dataserver", config, "--debug"], tmp_path)
    regraded = watched([BIN / "toolkit-rl-regrade", config, "--debug"], tmp_path)

    assert (served.code, regraded.code) == (1, 1)
    assert f"{away} cannot be opened" in served.text and f"{away} cannot be read" in regraded.text
    assert leaks({**served.places, "regrade": regraded.said, **files_below(tmp_path)}) == []


def test_a_password_in_the_url_is_refused_and_not_shown(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config", journal={"url": "postgresql+psycopg://journal:canary-postgres-71ab46@h/d"})

    ended = watched([BIN / "toolkit-rl-dataserver", config, "--debug", "--dry-run"], tmp_path)

    assert ended.code == 2
    assert "the URL contains a password" in ended.text
    assert secrets_in(ended.said) == []
