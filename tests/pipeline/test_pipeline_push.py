"""Step `push` sends what was trained to a hub of our own, once, and asks the hub before anything runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_server import hub_server
from hub_store import TOKEN, HubServer
from pipeline.pipeline_cases import Case

CALL = "from posttrain.cli.pipeline import main; main()"
PUSH = {
    "run": "push",
    "of": "dpo",
    "repo": "owner/fruits",
    "base_model": "owner/base",
    "license": "mit",
    "scores": "scores",
}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


def run(case: Case, hub: HubServer, cache: Path, expect: int = 0, **environment: str) -> str:
    """Run toolkit-pipeline in a process of its own, because huggingface_hub reads the environment once."""
    hub_variables = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HOME": str(cache)}
    finished = subprocess.run(
        [sys.executable, "-c", CALL, case.config],
        capture_output=True,
        text=True,
        env={**os.environ, **hub_variables, **environment},
    )
    assert finished.returncode == expect, finished.stderr
    assert TOKEN not in finished.stderr
    return finished.stderr


def test_it_is_sent_once_with_the_scores_of_the_chain(copied: Case, hub: HubServer, tmp_path: Path) -> None:
    copied.change("chain.yaml", steps={"share": PUSH})
    run(copied, hub, tmp_path / "cache")
    files = hub.files("owner/fruits")
    assert files["adapter_model.safetensors"] == (copied.folder_of("dpo") / "adapter_model.safetensors").read_bytes()
    assert b"fruits" in files["README.md"]
    assert copied.results() == {**dict.fromkeys(copied.results(), "kept"), "share": "done"}
    run(copied, hub, tmp_path / "cache")
    assert set(copied.results().values()) == {"kept"}
    assert len(hub.titles("owner/fruits")) == 1


def test_a_refused_token_is_told_before_anything_runs(copied: Case, hub: HubServer, tmp_path: Path) -> None:
    copied.change("chain.yaml", steps={"share": PUSH})
    copied.change("dpo/dpo.yaml", training={"learning_rate": 3e-2})
    said = run(copied, hub, tmp_path / "cache", expect=2, HF_TOKEN="hf_of_nobody")
    assert "owner/fruits" in said
    assert len(list(copied.output.glob("dpo-*"))) == 1


def test_what_was_merged_is_not_sent_as_what_was_trained(copied: Case, hub: HubServer, tmp_path: Path) -> None:
    copied.change("chain.yaml", steps={"share": {**PUSH, "of": "merged"}, "merged": {"run": "merge", "of": "dpo"}})
    assert "steps.share.of" in run(copied, hub, tmp_path / "cache", expect=2)
