"""Small configs of each kind with their data, and what a preview gathers from them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser

from chromium import open_browser

HOSTILE = "\x1b[31m<script>alert(1)</script>\u202eevil[bold]\x07"

Write = Callable[..., Path]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def write_sft(tmp_path: Path, tiny_model: Path) -> Write:
    """`write_sft(rows, other_rows, section=...)` writes a config of two stages and returns its path."""

    def write(rows: Sequence[Mapping], others: Sequence[Mapping] = (), **sections: Any) -> Path:
        write_rows(tmp_path / "train.jsonl", rows)
        datasets = {"train": {"path": "train.jsonl"}}
        stages = [{"name": "one", "until_step": 2, "mix": {"train": 1}}]
        if others:
            write_rows(tmp_path / "other.jsonl", others)
            datasets["other"] = {"path": "other.jsonl"}
            stages.append({"name": "two", "until_step": 4, "mix": {"train": 1, "other": 3}})
        config = {
            "model": {"name": str(tiny_model)},
            "chat": {"max_length": 512},
            "datasets": datasets,
            "stages": stages,
            "training": {"rows_per_step": 4, "micro_batch_size": 2},
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({**config, **sections}, sort_keys=False))
        return path

    return write


@pytest.fixture
def write_dpo(tmp_path: Path, tiny_model: Path) -> Write:
    """`write_dpo(rows, section=...)` writes a config of pairs and returns its path."""

    def write(rows: Sequence[Mapping], **sections: Any) -> Path:
        write_rows(tmp_path / "pairs.jsonl", rows)
        config = {
            "model": {"name": str(tiny_model)},
            "chat": {"max_length": 512},
            "datasets": {"pairs": {"path": "pairs.jsonl"}},
            "stages": [{"name": "one", "until_step": 2, "mix": {"pairs": 1}}],
            "training": {"rows_per_step": 2, "micro_batch_size": 1},
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({**config, **sections}, sort_keys=False))
        return path

    return write


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Chromium, for one test: no event loop of a grader can run while it is open."""
    with open_browser() as browser:
        yield browser
