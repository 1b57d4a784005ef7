"""Jobs are answered in their order and together where that is allowed; one thread uses the model."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_cases import NAME

from posttrain.errors import ModelError
from posttrain.inference.config import load_inference_config
from posttrain.inference.engine import Completion, GenerationRequest, Sampling, StopReason, completion_text
from posttrain.serve.asked import Asked
from posttrain.serve.batching import Batcher, Ended, Event, Failed, Job, Piece, Scored
from posttrain.serve.models import Choice, Models, find_models
from posttrain.serve.wire import Form
from posttrain.web.refusal import Refusal

SHORT, LONG = Sampling(4), Sampling(200_000)


class Heard:
    """Events of jobs by name, and a way to wait for them."""

    def __init__(self) -> None:
        self.events: defaultdict[str, list[Event]] = defaultdict(list)
        self.order: list[str] = []
        self._changed = threading.Condition()

    def tell(self, name: str) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            with self._changed:
                self.events[name].append(event)
                if isinstance(event, Ended):
                    self.order.append(name)
                self._changed.notify_all()

        return tell

    def wait(self, is_so: Callable[["Heard"], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self), 60), dict(self.events)

    def ended(self, name: str) -> Completion:
        self.wait(lambda heard: any(isinstance(event, Ended) for event in heard.events[name]))
        (end,) = (event for event in self.events[name] if isinstance(event, Ended))
        return end.completion

    def text(self, name: str) -> str:
        return "".join(event.text for event in self.events[name] if isinstance(event, Piece | Ended))


@pytest.fixture
def models(config: Path) -> Models:
    return Models(find_models(Choice(config), ["base"]), load_inference_config(config).generation, 1)


@pytest.fixture
def batcher(models: Models) -> Iterator[Batcher]:
    batcher = Batcher(models, NAME, batch_size=4, queue=6)
    batcher.start()
    yield batcher
    batcher.close(30)
    assert not batcher.is_alive


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def job(heard: Heard) -> Callable[..., Job]:
    def make(name: str, sampling: Sampling = SHORT, *, n: int = 1, alone: bool = False, scored: bool = False) -> Job:
        request = GenerationRequest((5, 6, 7, 8 + len(heard.events)), tuple(range(n)))
        return Job(NAME, request, sampling, alone, scored, heard.tell(name))

    return make


def held(batcher: Batcher, job: Callable[..., Job], heard: Heard) -> Job:
    """A job that keeps the thread busy until it is cancelled."""
    long = job("long", LONG)
    batcher.submit([long])
    heard.wait(lambda heard: heard.events["long"])
    return long


def test_what_is_told_is_the_completion(batcher: Batcher, job: Callable[..., Job], heard: Heard, models: Models):
    batcher.submit([job("a", Sampling(20), scored=True)])
    completion = heard.ended("a")
    scored = heard.events["a"][0]
    assert isinstance(scored, Scored) and len(scored.logprobs) == 3 and len(scored.tokens) == 4
    assert heard.text("a") == completion_text(models.text(NAME).tokenizer, completion, ())
    assert any(isinstance(event, Piece) for event in heard.events["a"])


def test_later_jobs_join_those_that_they_go_with(batcher: Batcher, job: Callable[..., Job], heard: Heard):
    """Waiting: a4 b5 a4 (alone)4 a4; the three a4 make one batch, and then b5 and the one alone have their turn."""
    long = held(batcher, job, heard)
    batcher.submit([job("a1"), job("b", Sampling(5)), job("a2"), job("alone", alone=True), job("a3")])
    batcher.cancel([long])
    heard.ended("alone")
    assert sorted(heard.order[1:4]) == ["a1", "a2", "a3"]
    assert heard.order[4:] == ["b", "alone"]


def test_a_batch_is_not_larger_than_it_may_be(batcher: Batcher, job: Callable[..., Job], heard: Heard):
    """Four at once: 3 answers and 1 fit together, and the 2 between them come later."""
    long = held(batcher, job, heard)
    sampled = Sampling(4, temperature=1.0)
    batcher.submit([job("three", sampled, n=3), job("two", sampled, n=2), job("one", sampled)])
    batcher.cancel([long])
    heard.wait(lambda heard: len(heard.order) == 7)
    assert sorted(heard.order[1:5]) == ["one", "three", "three", "three"]
    assert heard.order[5:] == ["two", "two"]


def test_a_cancelled_job_ends_and_one_that_waits_is_never_begun(
    batcher: Batcher, job: Callable[..., Job], heard: Heard
):
    long, waiting = held(batcher, job, heard), job("waiting")
    batcher.submit([waiting])
    batcher.cancel([waiting])
    batcher.cancel([long])
    assert heard.ended("long").stop_reason is StopReason.CUT
    batcher.submit([job("next")])
    heard.ended("next")
    assert heard.order == ["long", "next"]


def test_only_so_many_answers_may_wait(batcher: Batcher, job: Callable[..., Job], heard: Heard):
    held(batcher, job, heard)
    sampled = Sampling(4, temperature=1.0)
    batcher.submit([job("five", sampled, n=5)])
    with pytest.raises(Refusal, match="5 answers already wait"):
        batcher.submit([job("two", sampled, n=2)])
    batcher.submit([job("one", sampled)])


def test_what_fails_is_told_and_the_next_is_answered(
    batcher: Batcher, job: Callable[..., Job], heard: Heard, caplog: pytest.LogCaptureFixture
):
    """An id beyond the embedding raises an IndexError deep inside."""
    broken = job("broken")
    broken.request = GenerationRequest((5, 10**6))
    batcher.submit([broken])
    heard.wait(lambda heard: heard.events["broken"])
    (event,) = heard.events["broken"]
    assert isinstance(event, Failed) and event.refusal.code == "internal"
    assert "IndexError" in caplog.text
    batcher.submit([job("next")])
    heard.ended("next")


def test_a_close_tells_all_that_nothing_more_comes(batcher: Batcher, job: Callable[..., Job], heard: Heard):
    held(batcher, job, heard)
    batcher.submit([job("waiting")])
    batcher.close(30)
    assert not batcher.is_alive
    for name in ("long", "waiting"):
        assert any(isinstance(event, Failed) for event in heard.events[name])
    with pytest.raises(Refusal, match="stopping"):
        batcher.submit([job("late")])


def test_a_model_that_cannot_be_loaded_is_told_at_the_start(models: Models, endless_model: Path, tmp_path: Path):
    (tmp_path / "none").mkdir()
    chosen = models.weights[NAME]
    models.weights[NAME] = type(chosen)(
        chosen.model.model_copy(update={"name": str(tmp_path / "none")}), chosen.adapter, chosen.chat
    )
    with pytest.raises(ModelError, match="none"):
        Batcher(models, NAME, 4, 6).start()


@pytest.mark.parametrize(
    ("reason", "told"),
    [(StopReason.END, "stop"), (StopReason.STOP, "stop"), (StopReason.LENGTH, "length"), (StopReason.CUT, "length")],
)
def test_how_an_answer_ended_is_told_and_its_end_token_counted(reason: StopReason, told: str):
    form = Form("m", [Asked(GenerationRequest((5, 6)), SHORT)], is_chat=True)
    body = form.whole({0: "x"}, {0: Ended(0, "", Completion((7, 2), reason))}, {})
    assert body["choices"][0]["finish_reason"] == told
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
