"""Fixtures for all tests: a clean environment, a tiny model, and the packaged model, converted once per machine."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dataserver.postgres import PostgresServer
    from object_store import ObjectStore

# The console takes its width from COLUMNS when it is created, so create it without COLUMNS.
os.environ.pop("COLUMNS", None)
import posttrain.base.console  # noqa: F401

# The scripts that generate the docs are tested, too.
sys.path.append(str(Path(__file__).parents[1] / "docs"))

# huggingface_hub reads this on import, and other conftest files may import it before any hook or fixture runs.
os.environ["HF_HUB_OFFLINE"] = "1"
# Parallel test processes share the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["conversation_fixtures", "suite"]


@pytest.fixture(scope="session", autouse=True)
def users_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """Give the session its own cache and a single-process environment; the value is the user's cache setting."""
    before = os.environ.get("POSTTRAIN_TOOLKIT_CACHE")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            environment.delenv(name, raising=False)
        yield before


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread for numbers, here and in processes: for matrices this small, a second one costs more than it saves."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A test's own cache folder, not shared with other tests; the value is where tokenised rows go."""
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenized"


@pytest.fixture(scope="session")
def running_store() -> Iterator["ObjectStore"]:
    """A running object store, shared by all tests because it takes a second to start."""
    from object_store import object_store

    with object_store() as store:
        yield store


@pytest.fixture
def store(running_store: "ObjectStore", own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> "ObjectStore":
    """An empty object store that `s3://rows/` means, and a cache folder of the test's own."""
    from posttrain.data.readers.remote import listed

    running_store.empty()
    listed.cache_clear()
    for name, value in running_store.environment.items():
        monkeypatch.setenv(name, value)
    return running_store


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    """A running PostgreSQL server, shared by all tests because its password is in the environment."""
    from dataserver.postgres import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_folder(users_cache: str | None) -> Path:
    """The packaged model converted to a folder in the user's own cache, because conversion takes 20 seconds."""
    from posttrain.models.gguf import converted_folder
    from posttrain.models.location import locate_model

    with pytest.MonkeyPatch.context() as environment:
        if users_cache is None:
            environment.delenv("POSTTRAIN_TOOLKIT_CACHE")
        else:
            environment.setenv("POSTTRAIN_TOOLKIT_CACHE", users_cache)
        return converted_folder(Path(locate_model("smollm2-135m-instruct").path))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random 2-layer Llama with tied embeddings, in float32, and its byte-level tokenizer.

    It has 384 embedding rows, 4 more than the tokenizer has entries.
    """
    from tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def write_jsonl() -> Callable[[Path, Iterable[Mapping[str, Any]]], Path]:
    """`write_jsonl(path, rows)` writes one JSON object per line and returns the path."""

    def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    return write
