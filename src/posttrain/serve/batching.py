"""One thread that answers what waits, in batches of requests that are sampled alike."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.errors import ToolkitError
from posttrain.inference.answering.text_stream import TextStream
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling, decode, heard, without_end
from posttrain.serve.models import Models
from posttrain.web.refusal import Refusal

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """The next text of an answer."""

    choice: int
    text: str


@dataclass(frozen=True)
class Ended:
    """The end of an answer: the rest of its text, the whole completion, and the text of each of its tokens.

    The latter is empty unless log-probabilities are wanted.
    """

    choice: int
    text: str
    completion: Completion
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    """log p of each token of the prompt but the first, in nats, and the text of all of its tokens."""

    logprobs: list[float]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Failed:
    """Nothing more comes."""

    refusal: Refusal


Event = Piece | Ended | Scored | Failed


@dataclass(eq=False)
class Job:
    """One prompt to answer.

    Attributes:
        model: its name.
        is_alone: whether it must not be batched with others, so that its seeds repeat its answers exactly.
        is_scored: whether the prompt's log-probabilities are wanted.
        tell: called by the thread with each event.
        is_wanted: set to False when nobody waits for it any more.
    """

    model: str
    request: GenerationRequest
    sampling: Sampling
    is_alone: bool
    is_scored: bool
    tell: Callable[[Event], None]
    is_wanted: bool = True

    def goes_with(self, other: "Job") -> bool:
        """Whether both can be in one batch."""
        return not (self.is_alone or other.is_alone) and (self.model, self.sampling) == (other.model, other.sampling)


class Batcher:
    """Answers jobs in the order in which they came, together with later ones that go with them."""

    def __init__(self, models: Models, first: str, batch_size: int, queue: int) -> None:
        """`first`: the model to load at the start; `batch_size`: answers generated at once; `queue`: that may wait."""
        self._models = models
        self._batch_size, self._queue = batch_size, queue
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._first = first
        self._has_begun = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is there to answer."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, and wait until it has loaded the first model.

        Raises:
            ConfigError, ModelError: it cannot be loaded.
        """
        self._thread.start()
        self._has_begun.wait()
        if self._failure is not None:
            raise self._failure

    def submit(self, jobs: Sequence[Job]) -> None:
        """Have the jobs answered; Refusal if that would be too much waiting, or if the server is stopping."""
        with self._changed:
            if self._is_closed or not self._thread.is_alive():
                raise Refusal("unavailable", "the server is stopping")
            waiting = sum(job.request.n for job in self._waiting)
            if waiting + sum(job.request.n for job in jobs) > self._queue:
                raise Refusal("overloaded", f"{waiting} answers already wait (--limit queue); try again later")
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Forget jobs that wait, and end those that run at their next token; none if they have ended."""
        with self._changed:
            for job in jobs:
                job.is_wanted = False
                if job in self._waiting:
                    self._waiting.remove(job)

    def close(self, seconds: float) -> None:
        """Cancel everything, and wait for the thread to end, for `seconds` at most."""
        with self._changed:
            self._is_closed = True
            left = [*self._waiting, *self._running]
            self._changed.notify()
        self.cancel(left)
        for job in left:
            job.tell(Failed(Refusal("unavailable", "the server is stopping")))
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._models.engine(self._first)
        except BaseException as error:  # noqa: BLE001  # `start` raises it in its own thread
            self._failure = error
            return
        finally:
            self._has_begun.set()
        while batch := self._next_batch():
            try:
                self._answer(batch)
            except ToolkitError as error:
                self._fail(batch, error if isinstance(error, Refusal) else Refusal("bad_request", str(error)))
            except Exception:
                logger.exception("a batch of %d requests failed", len(batch))
                self._fail(batch, Refusal("internal", "the model failed; the server's log says why"))
        self._models.close()

    def _next_batch(self) -> list[Job]:
        """The first job that waits and those that go with it, as many as fit; empty once the server is closed."""
        with self._changed:
            self._running = []
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return []
            batch = [self._waiting.popleft()]
            size = batch[0].request.n
            for job in [each for each in self._waiting if each.goes_with(batch[0])]:
                if size + job.request.n <= self._batch_size:
                    self._waiting.remove(job)
                    batch.append(job)
                    size += job.request.n
            self._running = batch
            return batch

    def _answer(self, batch: list[Job]) -> None:
        engine, tokenizer = self._models.engine(batch[0].model)
        for job in batch:
            if job.is_scored and job.is_wanted:
                prompt = job.request.prompt_ids
                job.tell(Scored(engine.score(prompt), _each(tokenizer, prompt)))
        sampling = batch[0].sampling
        if sampling.max_new_tokens == 0:
            return
        streams = {key: TextStream(tokenizer, sampling.stop) for key in _keys(batch)}

        def hear(key: Key, tokens: Sequence[int]) -> bool:
            job = batch[key[0]]
            if job.is_wanted and (text := streams[key].add(tokens)):
                job.tell(Piece(key[1], text))
            return job.is_wanted

        for key, completion in heard(engine, [job.request for job in batch], sampling, hear):
            tokens = _each(tokenizer, without_end(completion)) if sampling.logprobs else ()
            batch[key[0]].tell(Ended(key[1], streams[key].finish(), completion, tokens))

    def _fail(self, batch: list[Job], refusal: Refusal) -> None:
        for job in batch:
            job.tell(Failed(refusal))


def _keys(batch: list[Job]) -> Iterator[Key]:
    return ((place, number) for place, job in enumerate(batch) for number in range(job.request.n))


def _each(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(decode(tokenizer, [token]) for token in ids)
