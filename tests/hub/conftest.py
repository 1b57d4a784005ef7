"""A hub that this process may talk to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_server import hub_server
from hub_store import TOKEN, HubServer


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """An empty hub; the token and its address are in the environment."""
    from huggingface_hub import constants

    # Settings that huggingface_hub has read from the environment when it was imported.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # of processes that this one starts
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub_cache"))
        yield server
