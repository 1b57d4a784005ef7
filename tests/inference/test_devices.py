"""Several devices give what one gives, and nothing of them is left behind."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.generation import GenerationConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.masks import TokenRow
from posttrain.errors import ConfigError, ModelError
from posttrain.inference.devices import EngineProcesses, open_answering
from posttrain.inference.engine import Engine, GenerationRequest, Sampling
from posttrain.inference.process.specs import AnsweringSpec

SAMPLED = Sampling(6, temperature=1.0, logprobs=True)
# Nine completions, so five batches of two; one batch has completions of two prompts.
REQUESTS = [GenerationRequest(tuple(range(5, 12)), (1, 2, 3)), GenerationRequest((5, 9), (4, 5, 6, 7, 8, 9))]
ROWS = [TokenRow(list(range(5, 5 + length)), [token % 2 == 0 for token in range(length)]) for length in (3, 9, 2, 7, 5)]


def spec(model: Path) -> AnsweringSpec:
    config = ModelConfig(name=str(model), backend="hf", dtype="float32")
    return AnsweringSpec("hf", config, None, ChatConfig(), batch_size=2, max_length=64)


def workers() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "posttrain.inference.process.worker" in each.cmdline()]


@pytest.fixture(scope="module")
def one(sharp_model: Path) -> Iterator[Engine]:
    with open_answering(spec(sharp_model)) as engine:
        yield engine


@pytest.fixture(scope="module")
def two(sharp_model: Path) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        with open_answering(spec(sharp_model), ("cpu", "cpu")) as engine:
            yield engine


def test_completions_and_scores_of_two_devices_are_those_of_one(one: Engine, two: Engine):
    assert dict(two.generate(REQUESTS, SAMPLED)) == dict(one.generate(REQUESTS, SAMPLED))
    assert dict(two.token_logprobs(ROWS)) == dict(one.token_logprobs(ROWS))
    assert two.score([5, 6, 7]) == one.score([5, 6, 7])


def test_what_is_done_is_not_made_again_and_changes_nothing_else(one: Engine, two: Engine):
    everything = one.complete(REQUESTS, SAMPLED)
    done = {(0, 0), (0, 1), (1, 2)}
    rest = dict(two.generate(REQUESTS, SAMPLED, done=done))
    assert rest == {key: completion for key, completion in everything.items() if key not in done}


def test_a_process_that_is_killed_is_replaced(one: Engine, two: Engine):
    os.kill(workers()[0].pid, signal.SIGKILL)
    assert two.complete(REQUESTS, SAMPLED) == one.complete(REQUESTS, SAMPLED)


def test_log_probabilities_of_labelled_tokens_are_those_of_the_whole_row(one: Engine):
    whole = {number: one.score(row.ids) for number, row in enumerate(ROWS)}
    for number, logprobs in one.token_logprobs(ROWS):
        wanted = [value for value, labelled in zip(whole[number], ROWS[number].trained[1:], strict=True) if labelled]
        assert logprobs == pytest.approx(wanted, abs=1e-5)


def test_a_model_that_cannot_be_loaded_ends_all_processes_with_its_own_error(tmp_path: Path):
    before = psutil.Process().children()
    with pytest.raises(ModelError, match="nothing"), open_answering(spec(tmp_path / "nothing"), ("cpu", "cpu")):
        pass
    assert psutil.Process().children() == before


def test_a_device_that_is_not_there_is_refused_before_anything_is_loaded(tmp_path: Path):
    with (
        pytest.raises(ConfigError, match=r"there is no cuda:99 here"),
        open_answering(spec(tmp_path / "nothing"), ("cuda:99",)),
    ):
        pass


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (["cpu", "cuda:0"], "one kind"),
        (["mps"], "mps: accelerators of Apple's kind are not used here; name cpu, or cuda:0 and so on"),
        (["xpu:1"], "xpu:1: accelerators of Intel's kind are not used here"),
        (["cuda:1", "cuda:1"], "named twice"),
        (["gpu"], "should be cpu, or cuda:0 and so on, found 'gpu'"),
    ],
)
def test_devices_that_make_no_sense_are_refused(devices: list[str], reason: str):
    with pytest.raises(ValueError, match=reason):
        GenerationConfig.model_validate({"devices": devices})


def test_the_same_process_answers_with_one_model_after_another(one: Engine, sharp_model: Path, tiny_model: Path):
    others = workers()
    with closing(EngineProcesses()) as processes:
        first = processes.engine(spec(tiny_model))
        found = dict(first.generate(REQUESTS, SAMPLED))
        [worker] = set(workers()) - set(others)
        second = processes.engine(spec(sharp_model))
        assert dict(second.generate(REQUESTS, SAMPLED)) == dict(one.generate(REQUESTS, SAMPLED)) != found
        assert set(workers()) == {worker, *others}
        with pytest.raises(RuntimeError, match="closed"):
            next(first.generate(REQUESTS, SAMPLED))
    assert not worker.is_running()


@pytest.mark.long
def test_after_a_model_that_cannot_be_loaded_another_one_answers(one: Engine, sharp_model: Path, tmp_path: Path):
    with closing(EngineProcesses()) as processes:
        processes.engine(spec(sharp_model))
        with pytest.raises(ModelError, match="nothing"):
            processes.engine(spec(tmp_path / "nothing"))
        again = processes.engine(spec(sharp_model))
        assert dict(again.generate(REQUESTS, SAMPLED)) == dict(one.generate(REQUESTS, SAMPLED))


@pytest.mark.long
def test_a_model_gets_new_processes_once_a_call_that_was_given_up_has_ended_them(one: Engine, sharp_model: Path):
    with closing(EngineProcesses()) as processes:
        asked = processes.engine(spec(sharp_model)).generate(REQUESTS, SAMPLED)
        next(asked)
        asked.close()
        again = processes.engine(spec(sharp_model))
        assert dict(again.generate(REQUESTS, SAMPLED)) == dict(one.generate(REQUESTS, SAMPLED))
