"""A real SGLang server is one engine: it answers as transformers does with the weights that it was given last."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.servers.real_servers import (
    LONG,
    WARM,
    groups,
    loaded,
    real_engine,
    require_of_model,
    require_recorded_shape,
    require_stops,
    scores,
    write_changed,
)
from posttrain.errors import ServerError
from posttrain.inference.servers.pool import ServerPool
from vllm_model import write_vllm_model


@pytest.fixture(scope="module")
def misleading(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose generation_config.json ends completions at almost any token."""
    return write_vllm_model(tiny_model, tmp_path_factory.mktemp("sglang"))


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server's own files."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def engine(misleading: Path, private: Path) -> Iterator[ServerPool]:
    told = misleading / "generation_config.json"
    kept = told.read_text(encoding="utf-8")
    told.unlink()
    with real_engine("sglang-server", misleading, private) as engine:
        told.write_text(kept, encoding="utf-8")
        yield engine


def test_new_weights_and_the_tied_head_arrive(engine: ServerPool, misleading: Path, tmp_path: Path) -> None:
    assert engine.versions[0].startswith("SGLang 0.")
    assert not engine.repeats  # it seeds completions only with --enable-deterministic-inference, which needs CUDA
    asked = groups(4, 4)
    for version in (1, 2):
        folder = write_changed(misleading, tmp_path / f"v{version}", seed=version)
        engine.load(folder, version)
        changed = loaded(folder)
        assert engine.score(LONG) == pytest.approx(scores(changed, LONG), abs=2e-3)
        require_of_model(engine.complete(asked, WARM), asked, changed)


def test_a_stop_text_ends_a_completion(engine: ServerPool, misleading: Path) -> None:
    require_stops(engine, misleading)


def test_the_answers_have_the_recorded_form(engine: ServerPool, private: Path, misleading: Path) -> None:
    require_recorded_shape("sglang-server", private, misleading)


@pytest.mark.long
def test_a_server_with_other_end_tokens_is_refused(misleading: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match="no end token of this model"),
        real_engine("sglang-server", misleading, tmp_path / "servers"),
    ):
        pass
