"""llama.cpp's programs get no secrets and no network, and their failure is told by the end of their output."""

import json
import socket
import sys
from pathlib import Path

import pytest

from posttrain.errors import RunError
from posttrain.export.processes import run, without_network

TELL = """
import json, os, socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5).close()
    reached = True
except OSError:
    reached = False
json.dump({"variables": dict(os.environ), "folder": os.getcwd(), "reached": reached}, open("told.json", "w"))
"""


def told(work: Path, port: int = 1) -> dict:
    run([sys.executable, "-c", TELL, str(port)], work, work / "log", "the program")
    return json.loads((work / "told.json").read_text())


def test_a_program_gets_neither_tokens_nor_proxies_and_a_home_of_its_own(tmp_path: Path, monkeypatch):
    secrets = {"HF_TOKEN": "hf_abcdefgh", "AWS_SECRET_ACCESS_KEY": "12345678", "HTTPS_PROXY": "http://u:p@proxy:1"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    found = told(tmp_path)
    assert found["variables"].keys().isdisjoint(secrets)
    assert not any(value in found["variables"].values() for value in secrets.values())
    assert (found["variables"]["HOME"], found["folder"]) == (str(tmp_path), str(tmp_path))
    assert found["variables"]["HF_HUB_OFFLINE"] == "1"


def test_a_failure_has_the_last_lines_of_the_output(tmp_path: Path):
    script = "import sys\nfor n in range(50): print('line', n)\nsys.exit(3)"
    with pytest.raises(RunError, match=r"the program ended with exit code 3; the end of its output:\n") as failed:
        run([sys.executable, "-c", script], tmp_path, tmp_path / "log", "the program")
    assert str(failed.value).splitlines()[1:] == [f"  line {n}" for n in range(42, 50)]


def test_a_program_reaches_nobody_where_the_system_lets_users_have_that(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = told(tmp_path, listener.getsockname()[1])
    assert found["reached"] is (without_network() == ())
