"""A dataserver that outlives its killed trainer does not remove the ready file that the next trainer waits for."""

import json
import signal
from pathlib import Path

from dataserver.serving import a_config, serving, until


def test_a_dataserver_that_ends_leaves_the_ready_file_of_the_one_after_it(tmp_path: Path) -> None:
    config, ready_file = a_config(tmp_path), tmp_path / "ready.json"

    def pid() -> int | None:
        return json.loads(ready_file.read_text())["pid"] if ready_file.exists() else None

    with (
        serving(config, ready_file=ready_file) as first,
        serving(config, ready_file=ready_file, wait=False) as second,
    ):
        until(lambda: pid() == second.process.pid, second.process, second.log)
        first.end(signal.SIGTERM)
        assert pid() == second.process.pid
