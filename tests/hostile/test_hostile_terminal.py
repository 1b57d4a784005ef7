"""Config names that look like markup are shown literally in a terminal."""

import json
import os
import pty
import subprocess
import time
from pathlib import Path

from dataserver.serving import a_config
from running import BIN

NAMES = {"sums": "[red]sums", "words": "[/bold] {0} %s"}


def renamed(config: Path) -> None:
    """Rename the config's datasets to invalid markup and format strings."""
    text = config.read_text()
    for name, odd in NAMES.items():
        text = text.replace(f"  {name}:", f"  {json.dumps(odd)}:")
    config.write_text(text)


def shown_in_a_terminal(command: list[str | Path], end: bytes, environment: dict[str, str]) -> bytes:
    """Run a command in a terminal until it shows `end`, kill it, and return what it showed."""
    main_end, terminal = pty.openpty()
    seen, deadline = b"", time.monotonic() + 60
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, **environment}
    )
    os.close(terminal)
    try:
        while end not in seen and time.monotonic() < deadline:
            try:
                seen += os.read(main_end, 65536)
            except OSError:  # the other end is closed
                break
    finally:
        process.kill()
        process.wait()
        os.close(main_end)
    return seen


def test_a_dataserver_with_names_that_look_like_markup_gets_ready(tmp_path: Path):
    config = a_config(tmp_path / "config")
    renamed(config)
    # A fresh cache: golds checked by an earlier server, e.g. in another test, are not checked again.
    cache = {"POSTTRAIN_TOOLKIT_CACHE": str(tmp_path / "cache")}
    seen = shown_in_a_terminal([BIN / "toolkit-rl-dataserver", config, "--port", "0"], b"ready\r\n", cache)
    assert seen.endswith(b"ready\r\n"), seen
    # The other dataset, sums, has no golds to check.
    assert b"golds of [/bold] {0} %s: 20 rows" in seen
