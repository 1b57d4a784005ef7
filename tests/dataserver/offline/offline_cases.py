"""Small data sets, a config whose graders obey the completions, and the commands as processes."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.records import JournalRow
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.runtime import Loaded
from running import BIN

# Obeys the word at `place` in the completion: a score, or what to do instead.
_TOLD = """
import os
import time

from posttrain.dataserver.graders.base import Abstain, Score


class Told:
    def __init__(self, place):
        self.place = place

    def score(self, item):
        order = item.completion.split()[self.place]
        if order == "abstain":
            raise Abstain("told to abstain")
        if order == "raise":
            raise ValueError("told to raise")
        if order == "exit":
            os._exit(3)
        if order == "sleep":
            open(os.path.join(os.path.dirname(__file__), "asleep"), "w").close()
            time.sleep(30)
        return Score(float(order), "as told")
"""


def write_lines(path: Path, lines: Iterable[Mapping[str, Any] | str]) -> Path:
    """A file of JSON objects and of raw lines."""
    texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_config(folder: Path, **changes: Any) -> Path:
    """A config of two data sets with five rows each, and two stages; `changes` replace sections."""
    (folder / "told.py").write_text(_TOLD)
    for name in ("sums", "words"):
        write_lines(
            folder / f"{name}.jsonl", [{"question": f"{name} {n}?", "answer": f"{name}-{n}"} for n in range(1, 6)]
        )
    columns = {"columns": {"prompt": "question"}}
    config: dict[str, Any] = {
        "graders": {name: {"type": "python", "path": "told.py:Told", "params": {"place": place}} for place, name in
                    enumerate(("one", "two"))},
        "datasets": {
            "sums": {"path": "sums.jsonl", **columns, "graders": {"one": 1, "two": 1}},
            "words": {"path": "words.jsonl", **columns, "graders": {"one": 1}},
        },
        "stages": [
            {"name": "early", "until_step": 10, "mix": {"sums": 1, "words": 1}},
            {
                "name": "late", "until_step": 20, "mix": {"sums": 1},
                "grading": {"sums": {"graders": {"one": 3, "two": 1}, "gates": ["two"]}},
            },
        ],
        "limits": {"workers": 2, "grader_seconds": 1},
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**config, **changes}))
    return path


def load(config: Path, *overrides: str) -> Loaded:
    """Load the config and its data."""
    return Loaded.read(load_config(config, DataserverConfig, overrides), lambda message: None)


def command(name: str, *arguments: str | Path, expect: int = 0) -> str:
    """Run a command and return its stderr, with tables 80 columns wide; stdout must be empty."""
    finished = subprocess.run(
        [BIN / name, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
    )
    assert finished.returncode == expect, finished.stderr
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    return finished.stderr


def table_rows(shown: str) -> list[list[str]]:
    """The lines of a command's output, split into words."""
    return [line.split() for line in shown.splitlines()]


def write_journal(config: JournalConfig, graded: Sequence[Mapping[str, Any]], run_id: str = "run") -> None:
    """Write output lines of toolkit-rl-grade to a journal, as a server would."""
    engine = open_database(config)
    writer = JournalWriter(engine, config)
    writer.add(_journal_row(number, line, run_id) for number, line in enumerate(graded))
    writer.close()
    engine.dispose()


def _journal_row(number: int, line: Mapping[str, Any], run_id: str) -> JournalRow:
    from posttrain.dataserver.graders.text.completions import completion_digest
    from posttrain.dataserver.schemas import Component

    same = ("iteration", "stage", "dataset", "sample_id", "prompt", "gold", "completion", "completion_tokens",
            "truncated", "status", "reason", "reward")  # fmt: skip
    return JournalRow(
        config_id="c",
        run_id=run_id,
        request_id=f"q{number}",
        item_id="0",
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        split="train",
        row_key=line["sample_id"].split(":")[1],
        slot=None,
        components={name: Component.model_validate(each) for name, each in line["components"].items()},
        completion_digest=completion_digest(line["completion"]),
        milliseconds=1.0,
        **{key: line[key] for key in same},
    )
