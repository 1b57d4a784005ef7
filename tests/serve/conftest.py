"""Models with clear favourites, and servers with them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from serve_cases import Server, serving, write_config

from sharp_model import write_sharp_model


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For all tests here."""


@pytest.fixture(scope="session")
def endless_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It never ends a turn and has a million positions, so that an answer can take longer than any test."""
    folder = write_sharp_model(tiny_model, tmp_path_factory.mktemp("models") / "endless")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][:3] = 0  # of the control tokens: all others have larger logits
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1_000_000}))
    return folder


@pytest.fixture
def config(tmp_path: Path, endless_model: Path) -> Path:
    return write_config(tmp_path / "run.yaml", endless_model)


@pytest.fixture(scope="session")
def server(endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that change nothing."""
    config = write_config(tmp_path_factory.mktemp("server") / "run.yaml", endless_model)
    with serving(config, "--limit", "body_mb=0.5", "--limit", "queue=512") as server:
        yield server


@pytest.fixture
def serve(config: Path) -> Iterator[Callable[..., Server]]:
    """`serve(*options)` starts a server of the test's own."""
    with ExitStack() as stack:
        yield lambda *options, **more: stack.enter_context(serving(config, *options, **more))
