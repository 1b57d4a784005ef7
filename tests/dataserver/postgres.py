"""A private, real PostgreSQL server for tests, in a temporary folder, on a free port.

Its binaries come from Debian's `postgresql` package or from the PATH.
"""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest


class PostgresServer:
    """One cluster. Its superuser `journal` needs a password, which is in PGPASSWORD while the server exists."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = _free_port()
        password = folder / "password"
        password.write_text(os.environ["PGPASSWORD"])
        self._run("initdb", "--pgdata=data", "--username=journal", "--auth=scram-sha-256", "--pwfile=password",
                  "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions")  # fmt: skip

    def start(self) -> None:
        """Start it and wait until it answers. After `stop`, it can be started again on the same port."""
        options = f"-F -p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        self._run("pg_ctl", "start", "--wait", "--silent", "--pgdata=data", f"--options={options}", "--log=log")

    def stop(self) -> None:
        """Stop it immediately, dropping all connections."""
        self._run("pg_ctl", "stop", "--mode=immediate", "--silent", "--pgdata=data")

    def new_database(self) -> str:
        """The URL, without the password, of a new, empty schema, which is much faster to create than a database."""
        name = self._new_name("CREATE SCHEMA {}")
        return f"{self._url}/postgres?options=-csearch_path%3D{name}"

    def latin_database(self) -> str:
        """The URL of a new LATIN1 database, which cannot store every character."""
        name = self._new_name("CREATE DATABASE {} ENCODING 'LATIN1' TEMPLATE template0")
        return f"{self._url}/{name}"

    @property
    def _url(self) -> str:
        return f"postgresql+psycopg://journal@127.0.0.1:{self.port}"

    def _new_name(self, statement: str) -> str:
        name = f"journal_{secrets.token_hex(6)}"
        address = f"host=127.0.0.1 port={self.port} user=journal dbname=postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement.format(name).encode())
        return name

    def _run(self, program: str, *arguments: str) -> None:
        # PostgreSQL refuses to run as root.
        as_user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        finished = subprocess.run(
            [_binary(program), *arguments], cwd=self.folder, capture_output=True, text=True, **as_user
        )
        assert finished.returncode == 0, f"{program}: {finished.stderr}{_log(self.folder)}"


@contextmanager
def postgres_server(password: str | None = None) -> Iterator[PostgresServer]:
    """A running server; it is stopped and its folder removed at the end."""
    # Not under pytest's temporary folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="toolkit-postgres-"))
    try:
        if os.geteuid() == 0:
            os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PGPASSWORD", password or secrets.token_hex(8))
            server = PostgresServer(folder)
            server.start()
            try:
                yield server
            finally:
                if (folder / "data" / "postmaster.pid").exists():
                    server.stop()
    finally:
        shutil.rmtree(folder)


def _binary(program: str) -> Path:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    path = os.pathsep.join([*(str(folder) for folder in reversed(versions)), os.environ.get("PATH", "")])
    found = shutil.which(program, path=path)
    if found is None:
        pytest.fail(f"there is no PostgreSQL server ({program}); apt-get install -y --no-install-recommends postgresql")
    return Path(found)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _log(folder: Path) -> str:
    log = folder / "log"
    return log.read_text() if log.exists() else ""
