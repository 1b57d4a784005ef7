"""A real vLLM server is one engine: it answers as transformers does with the weights that it was given last."""

import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from peft import LoraConfig, PeftModel, get_peft_model

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
from posttrain.inference.engine import Completion, Key
from posttrain.inference.servers.pool import ServerPool
from posttrain.inference.servers.probe import require_scores
from vllm_model import write_vllm_model


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vllm_model(tiny_model, tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server's own files."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def engine(model: Path, private: Path) -> Iterator[ServerPool]:
    with real_engine("vllm-server", model, private) as engine:
        yield engine


def tokens(found: dict[Key, Completion]) -> list[tuple[int, ...]]:
    return [made.token_ids for made in found.values()]


def test_new_weights_and_the_tied_head_arrive(engine: ServerPool, model: Path, tmp_path: Path) -> None:
    assert engine.versions[0].startswith("vLLM 0.")
    asked = groups(4, 4)
    for version in (1, 2):
        folder = write_changed(model, tmp_path / f"v{version}", seed=version)
        engine.load(folder, version)
        changed = loaded(folder)
        assert engine.score(LONG) == pytest.approx(scores(changed, LONG), abs=2e-3)
        require_of_model(engine.complete(asked, WARM), asked, changed)
    with pytest.raises(ServerError, match="does not have the weights"):
        require_scores("the server", engine.score(LONG), scores(loaded(model), LONG), 0.01)


def test_each_completion_has_its_own_seed_and_repeats(engine: ServerPool, model: Path) -> None:
    engine.load(model, 3)
    assert engine.repeats
    first = engine.complete(groups(4, 4), WARM)
    assert tokens(engine.complete(groups(4, 4), WARM)) == tokens(first)
    assert len(set(tokens(first))) == 16
    assert tokens(engine.complete(groups(1, 4), WARM)) == tokens(first)[:4]


def test_a_stop_text_ends_a_completion(engine: ServerPool, model: Path) -> None:
    require_stops(engine, model)


def test_the_answers_have_the_recorded_form(engine: ServerPool, private: Path, model: Path) -> None:
    require_recorded_shape("vllm-server", private, model)


@pytest.mark.long
def test_adapters_arrive_one_after_the_other(model: Path, tmp_path: Path) -> None:
    asked, adapters = groups(2, 4), []
    for seed in (1, 2, 3):
        config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(loaded(model), config).save_pretrained(tmp_path / f"adapter{seed}")
        adapters.append(tmp_path / f"adapter{seed}")
    with real_engine("vllm-server", model, tmp_path / "servers", rank=4) as engine:
        for version, folder in enumerate(adapters):
            engine.load(folder, version)
            adapted = PeftModel.from_pretrained(loaded(model), folder).eval()
            assert engine.score(LONG) == pytest.approx(scores(adapted, LONG), abs=2e-3)
            require_of_model(engine.complete(asked, WARM), asked, adapted)


@pytest.mark.long
def test_a_server_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(model: Path, tmp_path: Path) -> None:
    asked = groups(12, 8)
    with real_engine("vllm-server", model, tmp_path / "servers", count=2) as engine:
        engine.load(write_changed(model, tmp_path / "v1", seed=1), 1)
        before = engine.complete(asked, WARM)
        guards = [each for each in psutil.Process().children() if "posttrain.base.guard" in each.cmdline()]
        victims = guards[1].children(recursive=True)
        kill = threading.Timer(0.2, lambda: [each.kill() for each in victims])
        kill.start()
        found = engine.complete(asked, WARM)
        kill.join()
        assert tokens(found) == tokens(before)
        assert engine.failures == 1
