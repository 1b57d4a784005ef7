"""A run of any kind keeps a log of its attempt."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["sft", "dpo", "rl"])
def test_the_log_of_a_finished_run_ends_as_the_terminal_did(kind: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(f"{kind}_run")
    (log,) = (run / "logs").iterdir()
    lines = log.read_text().splitlines()
    assert log.name == "attempt-1.log"
    assert any(" step 1/" in line for line in lines)
    assert "exported" in lines[-1]
    assert all(line[:4].isdecimal() for line in lines)
