"""What all tests share: a clean environment, a tiny model, and the packaged one converted once per machine."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dataserver.postgres import PostgresServer

# The console keeps the width that COLUMNS says when it is made, so it is made where nothing says one.
os.environ.pop("COLUMNS", None)
import posttrain.base.console  # noqa: F401

# The scripts that write the pages are tested as well.
sys.path.append(str(Path(__file__).parents[1] / "docs"))

# The hub's library reads it when it is imported, which other conftest files may do before any hook or fixture runs.
os.environ["HF_HUB_OFFLINE"] = "1"
# Processes that test at once share the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["conversation_fixtures", "suite"]


@pytest.fixture(scope="session", autouse=True)
def users_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """Give the session a cache of its own, in one process; the value is the user's setting of the cache folder."""
    before = os.environ.get("POSTTRAIN_TOOLKIT_CACHE")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            environment.delenv(name, raising=False)
        yield before


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Where the tokenised rows of one test are kept, so that no other test's are found there."""
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenized"


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    """A running PostgreSQL server. There is one for all, since its password stands in the environment."""
    from dataserver.postgres import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_folder(users_cache: str | None) -> Path:
    """The packaged model as a folder, in the user's own cache: converting it takes 20 seconds."""
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
    """Folder of a random Llama of 2 layers with tied embeddings, in float32, and its byte-level tokenizer.

    Its 384 embedding rows are 4 more than the tokenizer has entries.
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
