"""The server conforms to its own OpenAPI description, which does not change by accident."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataserver.serving import Server, a_config, good, serving
from running import BIN

SNAPSHOT = Path(__file__).with_name("openapi.json")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(a_config(tmp_path_factory.mktemp("openapi") / "config")) as server:
        yield server


def test_the_protocol_changes_on_purpose_only(server: Server) -> None:
    described = good(server.client.get("/openapi.json"))
    del described["info"]["version"]
    text = json.dumps(described, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("WRITE_SNAPSHOTS"):
        SNAPSHOT.write_text(text)

    changed = "the protocol changed; if it should, run this test with WRITE_SNAPSHOTS=1, and look at what became of it"
    assert json.loads(SNAPSHOT.read_text()) == described, changed


def test_every_answer_is_one_that_is_described(server: Server, tmp_path: Path) -> None:
    # The description cannot express which well-formed requests fit the config.
    others = "negative_data_rejection,positive_data_acceptance"
    command = [BIN / "schemathesis", "run", f"{server.url}/openapi.json", "--generation-deterministic", "--no-color"]
    options = ["--phases=examples,coverage,fuzzing", "--max-examples=60", f"--exclude-checks={others}"]

    ended = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 passed" in ended.stdout
    assert "Traceback" not in server.log.read_text()
