"""Models that are asked: a trained model, opened only if it must answer or score something, or a server."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from posttrain.base.console import console
from posttrain.base.files import described_hash
from posttrain.config.sections.answerers import AnswererConfig, EndpointConfig, TrainedModelConfig
from posttrain.config.sections.generation import AnsweringConfig
from posttrain.conversation.masks import TokenRow
from posttrain.data.preparation import tokenizer_digest
from posttrain.inference.answering.answer import Answerer, Asked, EngineAnswers
from posttrain.inference.answering.endpoint import EndpointAnswers, conversation_fields, new_links, request_fields
from posttrain.inference.answering.joining import join, joinable
from posttrain.inference.answering.partial import PartialOutput
from posttrain.inference.answering.rows import Room, Row, encode_prompts, first_faults
from posttrain.inference.answering.shards import Shard, shards_beside
from posttrain.inference.devices import EngineProcesses, computed_in
from posttrain.inference.engine import Engine, Sampling, plan_groups
from posttrain.inference.load import ModelText, load_text
from posttrain.inference.process.specs import AnsweringSpec
from posttrain.inference.weights import ChosenWeights, weights_of

_CHAT = {
    *("template", "template_variables", "default_system", "reasoning_history"),
    *("reasoning_tags", "solution_tags"),
}


@dataclass(frozen=True)
class Questions:
    """Rows to ask, and how; `shard` is the part of them that is asked, None for all."""

    rows: Sequence[Row]
    n: int
    sampling: AnsweringConfig
    skip_unusable: bool = False
    shard: Shard | None = None


class Asking:
    """Questions for one model, whose answers are kept in a file that is named by everything they depend on."""

    def __init__(self, asked: Asked, answerer: "AnswererMaker", longest: int, prompt_tokens: int | None = None) -> None:
        self._asked, self._answerer = asked, answerer
        self.longest = longest
        """The largest number of tokens of a prompt and its answer together; 0 for a server."""
        self.prompt_tokens = prompt_tokens
        """Tokens of all prompts, each counted once; None for a server."""
        [self.path] = asked.outputs.values()

    @property
    def is_done(self) -> bool:
        """Whether all answers are there."""
        return self.path.is_file()

    def run(self) -> Path:
        """Get the answers that are missing; the file with all of them, which is not there yet if this is a shard.

        Raises:
            RunError: the disk is full.
            ServerError: the server fails.
        """
        if self.is_done:  # a run may have been killed before it had tidied up
            self._asked.partial.remove(self._asked.outputs.values())
        else:
            self._asked.answer(None if self._asked.is_complete else self._answerer())
            console.print(self._asked.endings())
        return self.path

    def join(self) -> Path:
        """Join the answers of all shards; the file with all of them.

        Raises:
            ConfigError: a shard is missing, unfinished or of another job.
            RunError: the disk is full.
        """
        if self.is_done:
            for shard in shards_beside(self.path):
                shard.file_of(self.path).unlink()
        else:
            join(joinable(self._asked, overwrite=True))
        return self.path


class AnswererMaker(Protocol):
    """Opens what answers."""

    def __call__(self) -> Answerer: ...


class Model(Protocol):
    """A model that is asked, and closed before another one is."""

    name: str

    @property
    def identity(self) -> dict[str, Any]:
        """What determines its answers, besides the questions."""
        ...

    def asking(self, file: str, questions: Questions, folder: Path) -> Asking:
        """The questions for this model; nothing is asked yet.

        Args:
            file: name of the task that the rows come from.
            folder: where answers are kept.

        Raises:
            DataError: a row cannot be asked.
        """
        ...

    def close(self) -> None:
        """Give up what answers; it is opened again when it is needed."""
        ...


class LocalModel:
    """A model of a training config."""

    def __init__(
        self, name: str, weights: ChosenWeights, sampling: AnsweringConfig, processes: EngineProcesses
    ) -> None:
        """Load its tokenizer; its engine will run in `processes`. Errors as `load_text`."""
        self.name, self.weights, self._processes = name, weights, processes
        self.text: ModelText = load_text(weights.model, weights.chat)
        self.longest = 0
        """Room for the longest prompt with its answer, to be set before `engine` is used."""
        self._sampling = sampling
        self._engine: Engine | None = None

    def __str__(self) -> str:
        return str(self.weights)

    @property
    def identity(self) -> dict[str, Any]:
        """Weights, tokenizer, chat format and engine."""
        model, chat = self.weights.model, self.weights.chat
        return {
            "weights": self.weights.digest() or [model.name, model.revision],
            "dtype": [model.dtype, model.quantization, model.attention],
            "tokenizer": tokenizer_digest(self.text.tokenizer),
            "chat": chat.model_dump(mode="json", include=_CHAT),
            "engine": self._sampling.engine,
            "batch_size": self._sampling.batch_size,
        }

    def asking(self, file: str, questions: Questions, folder: Path) -> Asking:
        """The questions for this model; nothing is loaded yet. DataError if a row cannot be asked."""
        n, sampling = questions.n, questions.sampling
        room = Room(self.weights.chat.max_length, sampling.max_new_tokens, self.text.positions)
        on_bad_record = "skip" if questions.skip_unusable else "error"
        prompts = encode_prompts(questions.rows, self.text.encoder, room, on_bad_record)
        for fault in first_faults(prompts.faults):
            console.print(f"{self.name} is not asked {fault}")
        requests = prompts.requests(n, sampling.seed)
        hashed = hashlib.blake2b(repr([request.prompt_ids for request in requests]).encode(), digest_size=16)
        identity = {"model": self.identity, "sampling": _described(sampling), "n": n, "prompts": hashed.hexdigest()}

        def answerer() -> Answerer:
            return EngineAnswers(self.engine, self.text.tokenizer, requests, Sampling.of(sampling))

        lengths = [len(request.prompt_ids) for request in requests]
        groups = plan_groups(lengths, n, sampling.batch_size)
        kept, computed = _kept(folder, file, identity), partial(computed_in, self.weights.model, sampling.devices)
        asked = Asked(prompts.rows, n, {file: kept.output}, kept, identity, groups, computed)
        if questions.shard is not None:
            asked = asked.of(questions.shard)
            requests = [requests[place] for place in questions.shard.places(groups)]
        return Asking(asked, answerer, max(lengths) + sampling.max_new_tokens, sum(lengths))

    @property
    def engine(self) -> Engine:
        """The engine; that of the model which was asked before is closed."""
        if self._engine is None:
            console.print(f"loading {self.weights}")
            weights, sampling = self.weights, self._sampling
            chosen = weights.model, weights.adapter, weights.chat
            spec = AnsweringSpec(sampling.engine, *chosen, sampling.batch_size, self.longest)
            self._engine = self._processes.engine(spec)
        return self._engine

    def token_logprobs(self, rows: Sequence[TokenRow]) -> Iterator[tuple[int, list[float]]]:
        """Yield (number of a row, log p of each of its trained tokens) in nats, at temperature 1."""
        return self.engine.token_logprobs(rows)

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


class EndpointModel:
    """A model behind a server."""

    def __init__(self, name: str, server: EndpointConfig) -> None:
        """Contact nothing yet; ConfigError if the server's key is not in the environment."""
        self.name, self.server = name, server
        new_links(server)

    def __str__(self) -> str:
        return f"{self.server.model} at {self.server.place}"

    @property
    def identity(self) -> dict[str, Any]:
        """Addresses, name and further fields of the requests; what is behind the name is the server's affair."""
        url = self.server.url if isinstance(self.server.url, str) else list(self.server.url)
        return {"url": url, "model": self.server.model, "request": self.server.request}

    def asking(self, file: str, questions: Questions, folder: Path) -> Asking:
        """The questions for this model; nothing is asked yet."""
        rows, n, sampling = questions.rows, questions.n, questions.sampling
        fields = [request_fields(self.server, sampling), *(conversation_fields(row.prompt) for row in rows)]
        identity = {
            "model": self.identity,
            "seed": sampling.seed,
            "n": n,
            "requests": described_hash({"fields": fields}),
        }
        kept, each_alone = _kept(folder, file, identity), [[place] for place in range(len(rows))]
        asked = Asked(rows, n, {file: kept.output}, kept, identity, each_alone)
        if questions.shard is not None:
            asked = asked.of(questions.shard)

        def answerer() -> Answerer:
            return EndpointAnswers(self.server, asked.rows, n, sampling)

        return Asking(asked, answerer, 0)

    def close(self) -> None:
        """Nothing is open."""


def open_model(
    name: str, choice: AnswererConfig, sampling: AnsweringConfig, processes: EngineProcesses
) -> LocalModel | EndpointModel:
    """A model that a config names; its weights are not loaded yet.

    Raises:
        ConfigError: there is no such run, merged model or checkpoint, or the server's key is missing.
        ModelError: a folder does not hold a model, or its tokenizer cannot be loaded.
    """
    if isinstance(choice, TrainedModelConfig):
        return LocalModel(name, weights_of(choice), sampling, processes)
    return EndpointModel(name, choice)


def _described(sampling: AnsweringConfig) -> dict[str, Any]:
    """The sampling options that change answers."""
    return sampling.model_dump(mode="json", exclude={"devices", "engine", "batch_size"})


def _kept(folder: Path, file: str, identity: dict[str, Any]) -> PartialOutput:
    """The answers that are kept under a name which depends on `identity`."""
    return PartialOutput(folder / f"{file}-{described_hash(identity)[:16]}.jsonl")
