"""Answer rows resumably: each answer is on disk before the next one is taken."""

import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from posttrain.base.console import Counting, console
from posttrain.base.files import why_unwritten
from posttrain.base.text import counted
from posttrain.errors import RunError
from posttrain.inference.answering.partial import Answer, AnswerKey, PartialOutput, answer_line, write_in_order
from posttrain.inference.answering.rows import Row
from posttrain.inference.answering.shards import Shard
from posttrain.inference.engine import Completion, Engine, GenerationRequest, Key, Sampling, completion_text


class Answerer(Protocol):
    """A model that answers rows."""

    def answers(self, done: AbstractSet[Key]) -> Iterator[tuple[Key, Answer]]:
        """Yield the answers as they finish, in any order, without those in `done`."""
        ...


@dataclass(frozen=True)
class EngineAnswers:
    """The answers of an engine to `requests`, one for each row."""

    engine: Engine
    tokenizer: Any
    requests: Sequence[GenerationRequest]
    sampling: Sampling

    def answers(self, done: AbstractSet[Key]) -> Iterator[tuple[Key, Answer]]:
        """Yield the answers as they finish, in any order, without those in `done`."""
        for key, completion in self.engine.generate(self.requests, self.sampling, done=done):
            yield key, self._answer(completion)

    def _answer(self, completion: Completion) -> Answer:
        text = completion_text(self.tokenizer, completion, self.sampling.stop)
        known = None if completion.logprobs is None else completion.token_ids
        return Answer(text, str(completion.stop_reason), len(completion.token_ids), known, completion.logprobs)


@dataclass(frozen=True)
class Asked:
    """Rows to answer, and the answers that are on disk.

    Attributes:
        n: answers per row.
        outputs: by the name of the rows' file.
        partial: the answers that exist already.
        identity: identifies the job; existing answers belong to it only if theirs is equal.
        groups: places of rows that one shard answers, as of `plan_groups`.
        computed: tells how this machine computes; shards of machines that differ in this are not joined.
        shard: which part of the rows these are; its answers stay in `partial` until all shards are joined.
    """

    rows: Sequence[Row]
    n: int
    outputs: dict[str, Path]
    partial: PartialOutput
    identity: dict[str, Any]
    groups: Sequence[Sequence[int]]
    computed: Callable[[], str] = str
    shard: Shard | None = None

    def of(self, shard: Shard) -> "Asked":
        """The rows of a shard, and its answers that are on disk."""
        return replace(
            self,
            rows=[self.rows[place] for place in shard.places(self.groups)],
            partial=PartialOutput(self.partial.output, shard),
            identity={"shard": str(shard), "computed": self.computed(), **self.identity},
            shard=shard,
        )

    @property
    def is_complete(self) -> bool:
        """Whether all answers are on disk."""
        return self.partial.job == self.identity and all(key in self.partial for key in self.keys().values())

    def keys(self) -> dict[Key, AnswerKey]:
        """The key on disk of each wanted answer, by (index of its row, sample)."""
        return {
            (place, sample): (row.file, row.index, sample)
            for place, row in enumerate(self.rows)
            for sample in range(self.n)
        }

    def answer(self, answerer: Answerer | None) -> None:
        """Get the missing answers and write the outputs; what is kept after an interruption is printed.

        Args:
            answerer: None if no answer is missing.

        Raises:
            RunError: the disk is full.
        """
        keys = self.keys()
        tokens, started = 0, time.monotonic()
        with self._saying_what_is_kept():
            self.partial.begin(self.identity)
            done = {key for key, on_disk in keys.items() if on_disk in self.partial}
            with Counting("answering", "answers", len(keys)) as progress:
                progress.advance(len(done))
                for (place, sample), answer in answerer.answers(done) if answerer is not None else ():
                    self.partial.add(answer_line(self.rows[place], sample, answer))
                    tokens += answer.tokens or 0
                    progress.advance()
            if tokens:
                seconds = time.monotonic() - started
                console.print(f"{tokens:,} tokens in {seconds:.1f} s ({tokens / seconds:,.0f} tokens/s)")
            if self.shard is None:
                write_in_order([self.partial], self.outputs)

    def endings(self) -> str:
        """How the answers ended, as one line."""
        told = {
            "end": "ended by the model",
            "stop": "ended at a stop string",
            "length": "cut at max_new_tokens",
            "empty": "empty, so not usable for training",
        }
        counts = self.partial.counts
        endings = ", ".join(f"{counts[key]} {words}" for key, words in told.items() if counts[key])
        return f"{counted(len(self.partial), 'answer')}{': ' * bool(endings)}{endings}"

    @contextmanager
    def _saying_what_is_kept(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            kept = (
                f"{len(self.partial)} of {len(self.keys())} answers are kept in {self.partial.path}; "
                "run the same command again to continue"
            )
            reason = why_unwritten(error) if isinstance(error, Exception) else None
            if reason is not None:
                raise RunError(f"{reason}; free some space; {kept}") from error
            console.print(kept)
            raise
        finally:
            self.partial.close()
