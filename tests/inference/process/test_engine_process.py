"""An engine in a process of its own answers as one in this process, survives its death, and ends with its parent."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.errors import ModelError, ServerError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.loaded import LoadedModelEngine, write_trained
from posttrain.inference.process.engine import EngineProcess
from posttrain.inference.process.specs import ModelSpec, OwnSpec
from posttrain.models.backend import LoadedModel, TrainingSettings
from posttrain.models.frozen import without_dropout
from posttrain.models.hf import HfBackend

REQUESTS = [GenerationRequest((1, 5, 6, 7), (1, 2, 3)), GenerationRequest((1, 9), (4, 5))]
SAMPLING = Sampling(8, temperature=1.0, logprobs=True)
END = frozenset({2})
LORA = LoraConfig(r=4, dropout=0.1)
SETTINGS = TrainingSettings(chatml=True, max_length=64, gradient_checkpointing=False, seed=0)


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> LoadedModel:
    made = HfBackend().load_for_training(ModelConfig(name=str(tiny_model), dtype="float32"), LORA, settings=SETTINGS)
    without_dropout(made.model)
    torch.manual_seed(0)
    for name, parameter in made.model.named_parameters():
        if "lora_B" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return made


@pytest.fixture(scope="module")
def here(loaded: LoadedModel) -> LoadedModelEngine:
    return LoadedModelEngine(loaded, END, 8)


@pytest.fixture(scope="module")
def weights(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    write_trained(loaded.model, folder)
    return folder


def spec(tiny_model: Path, end_ids: frozenset[int] = END, batch_size: int = 8) -> ModelSpec:
    return ModelSpec(ModelConfig(name=str(tiny_model), dtype="float32"), LORA, SETTINGS, end_ids, batch_size)


_ENGINE = """
import time
from posttrain.inference.engine import Completion, StopReason

class Engine:
    def __init__(self, model, end_ids, begun):
        self._begun = begun
    def complete(self, requests, sampling):
        with open(self._begun, "a") as file:
            file.write("begun\\n")
        time.sleep(1)
        return {(0, 0): Completion((5,), StopReason.LENGTH)}
    load = score = close = print
"""


def without_torch(folder: Path) -> OwnSpec:
    """An engine that starts soon, takes a second for a completion, and appends a line to a file when it begins it."""
    (folder / "engine.py").write_text(_ENGINE)
    return OwnSpec(f"{folder / 'engine.py'}:Engine", folder, END, {"begun": str(folder / "begun")})


@pytest.fixture(scope="module")
def apart(tiny_model: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    engine = EngineProcess(log, seconds=120, threads=1).open(spec(tiny_model))
    engine.load(weights, 3)
    yield engine
    pid = engine.pid
    engine.close()
    assert not psutil.pid_exists(pid)


def test_its_completions_and_scores_are_those_of_the_training_model_bit_for_bit(
    here: LoadedModelEngine, apart: EngineProcess
) -> None:
    assert apart.complete(REQUESTS, SAMPLING) == here.complete(REQUESTS, SAMPLING)
    assert apart.score([1, 5, 6, 9, 7]) == here.score([1, 5, 6, 9, 7])


def test_one_that_dies_is_started_again_with_its_weights_and_gets_the_same_command(
    here: LoadedModelEngine, apart: EngineProcess
) -> None:
    before = apart.pid
    os.kill(before, signal.SIGKILL)
    assert apart.complete(REQUESTS, SAMPLING) == here.complete(REQUESTS, SAMPLING)
    assert apart.pid != before


def test_one_that_is_killed_while_it_works_makes_only_what_had_not_ended(
    here: LoadedModelEngine, apart: EngineProcess
) -> None:
    requests = [GenerationRequest((1, 5, number), (1, 2, 3)) for number in range(10)]  # in batches of 8
    wanted = here.complete(requests, SAMPLING)
    heard, finished, before = list[Key](), FinishedCompletions(), apart.pid

    def hear(key: Key, completion: Completion) -> None:
        heard.append(key)
        if len(heard) == 9:
            os.kill(before, signal.SIGKILL)

    finished.heard = hear
    assert apart.complete(requests, SAMPLING, finished) == wanted
    assert apart.pid != before
    assert sorted(heard) == sorted(wanted)


def test_what_has_ended_earlier_is_neither_made_nor_sent_again(here: LoadedModelEngine, apart: EngineProcess) -> None:
    wanted = here.complete(REQUESTS, SAMPLING)
    heard, finished = list[Key](), FinishedCompletions()
    finished.extend(REQUESTS, [*wanted.items()][:2])
    finished.heard = lambda key, completion: heard.append(key)
    assert apart.complete(REQUESTS, SAMPLING, finished) == wanted
    assert apart.complete(REQUESTS, SAMPLING, finished) == wanted
    assert sorted(heard) == [*wanted][2:]


def test_one_that_falls_silent_in_the_middle_of_a_command_is_replaced(tmp_path: Path) -> None:
    engine, begun = EngineProcess(tmp_path / "log", seconds=8).open(without_torch(tmp_path)), tmp_path / "begun"
    silent = psutil.Process(engine.pid)

    def suspend() -> None:
        while not begun.exists():
            time.sleep(0.01)
        silent.suspend()

    thread = threading.Thread(target=suspend)
    thread.start()
    made = engine.complete([GenerationRequest((1,), (2,))], Sampling(1))
    thread.join()
    assert [completion.token_ids for completion in made.values()] == [(5,)]
    assert begun.read_text().count("begun") >= 2
    assert not silent.is_running()
    engine.close()


def test_weights_of_another_model_are_refused_by_its_own_error(apart: EngineProcess, tmp_path: Path) -> None:
    write_trained(torch.nn.Linear(2, 2), tmp_path)
    with pytest.raises(ModelError, match="another model"):
        apart.load(tmp_path, 4)


def test_a_model_that_cannot_be_loaded_is_refused_by_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing"):
        EngineProcess(tmp_path / "log", seconds=60).open(spec(tmp_path / "nothing"))


def test_one_that_stays_silent_is_ended_and_after_three_times_the_reason_is_told(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with pytest.raises(ServerError, match=r"(?s)did not answer for 0\.01 s.*3 times in a row.*the end of .*log"):
        EngineProcess(tmp_path / "log", seconds=0.01).open(without_torch(tmp_path))
    assert psutil.Process().children() == before


def test_one_that_is_closed_ends_a_command_of_another_thread(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path / "log", seconds=60).open(without_torch(tmp_path))
    os.kill(engine.pid, signal.SIGSTOP)
    timer = threading.Timer(0.2, engine.close)
    timer.start()
    with pytest.raises(ServerError, match="closed"):
        engine.score([1, 2, 3])
    timer.join()


def test_one_that_is_closed_starts_no_process_for_commands_that_come_later(tmp_path: Path) -> None:
    before = psutil.Process().children()
    engine = EngineProcess(tmp_path / "log", seconds=60).open(without_torch(tmp_path))
    engine.close()
    with pytest.raises(ServerError, match="closed"):
        engine.score([1, 2, 3])
    assert psutil.Process().children() == before


@pytest.mark.parametrize("sharer", [False, True], ids=["alone", "another process holds the pipe"])
def test_it_ends_with_its_parent(tmp_path: Path, sharer: bool) -> None:
    own = without_torch(tmp_path)
    script = f"""
        import os, sys, time
        from pathlib import Path
        from posttrain.inference.process.engine import EngineProcess
        from posttrain.inference.process.specs import OwnSpec
        spec = OwnSpec({own.place!r}, Path({str(tmp_path)!r}), frozenset(), {dict(own.options)!r})
        engine = EngineProcess(Path({str(tmp_path / "log")!r}), seconds=60).open(spec)
        if {sharer} and os.fork() == 0:
            time.sleep(60)
        print(engine.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 20
        while psutil.pid_exists(pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(parent.pid, signal.SIGKILL) if sharer else parent.kill()
