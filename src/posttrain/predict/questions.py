"""What a job asks of a model on this machine or of servers, and what its answers depend on there."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from posttrain.base.files import described_hash
from posttrain.base.text import counted
from posttrain.config.sections.answerers import EndpointConfig
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import GenerationConfig
from posttrain.errors import ConfigError
from posttrain.inference.answering.answer import Answerer, EngineAnswers
from posttrain.inference.answering.endpoint import EndpointAnswers, conversation_fields, new_links, request_fields
from posttrain.inference.answering.rows import Room, Row, encode_prompts, rows_with_prompts
from posttrain.inference.devices import computed_in, open_answering
from posttrain.inference.engine import Sampling, plan_groups
from posttrain.inference.load import load_text
from posttrain.inference.process.specs import AnsweringSpec
from posttrain.inference.weights import ChosenWeights


@dataclass(frozen=True)
class Questions:
    """Rows that a model is asked.

    Attributes:
        faults: one line for each row left out.
        identity: what the answers depend on, besides the input and the sampling options.
        groups, computed: as in `Asked`.
        lengths: of the prompts in tokens, in words; empty if servers count them.
        answers: opens what answers the rows at these places.
    """

    rows: list[Row]
    faults: list[str]
    identity: dict[str, Any]
    groups: Sequence[Sequence[int]]
    computed: Callable[[], str]
    lengths: str
    answers: Callable[[Sequence[int]], AbstractContextManager[Answerer]]


def asked_here(
    weights: ChosenWeights,
    generation: GenerationConfig,
    rows: Sequence[Row],
    on_bad_record: OnBadRecord,
    *,
    by_shards: bool,
) -> Questions:
    """The questions for a model on this machine, whose weights are not loaded yet.

    Args:
        by_shards: whether other machines may have the weights in other places.

    Raises:
        ConfigError: by shards, a hub's model is not on this machine yet.
        DataError: a row cannot be answered.
        ModelError: the tokenizer cannot be loaded, or cannot end a turn.
    """
    text = load_text(weights.model, weights.chat)
    room = Room(weights.chat.max_length, generation.max_new_tokens, text.positions)
    prompts = encode_prompts(rows, text.encoder, room, on_bad_record)
    requests = prompts.requests(generation.n, generation.seed)
    lengths = [len(ids) for ids in prompts.ids]
    hashed = hashlib.blake2b(digest_size=16)
    for request in requests:
        hashed.update(repr(request.prompt_ids).encode())

    @contextmanager
    def answers(places: Sequence[int]) -> Iterator[Answerer]:
        chosen = weights.model, weights.adapter, weights.chat
        longest = max(lengths) + generation.max_new_tokens
        spec = AnsweringSpec(generation.engine, *chosen, generation.batch_size, longest)
        with open_answering(spec, generation.devices) as engine:
            sampling = Sampling.of(generation, logprobs=generation.logprobs)
            yield EngineAnswers(engine, text.tokenizer, [requests[place] for place in places], sampling)

    shortest = f"{min(lengths):,} to " * (min(lengths) < max(lengths))
    return Questions(
        prompts.rows,
        prompts.faults,
        {"prompts": hashed.hexdigest(), **(_weights_anywhere if by_shards else _weights_here)(weights)},
        plan_groups(lengths, generation.n, generation.batch_size),
        partial(computed_in, weights.model, generation.devices),
        f"; {shortest}{counted(max(lengths), 'token')}",
        answers,
    )


def _weights_here(weights: ChosenWeights) -> dict[str, Any]:
    """What is cheap to find out and changes with the weights."""
    return {
        "model": weights.model.model_dump(mode="json"),
        "adapter": str(weights.adapter),
        "weights": weights.fingerprint(),
    }


def _weights_anywhere(weights: ChosenWeights) -> dict[str, Any]:
    """What is the same on each machine that has the weights, wherever they are there."""
    return {
        "model": weights.model.model_dump(mode="json", exclude={"name", "revision", "adapter"}),
        "weights": weights.digest_here(),
    }


def asked_of_servers(
    server: EndpointConfig, generation: GenerationConfig, rows: Sequence[Row], on_bad_record: OnBadRecord
) -> Questions:
    """The questions for servers, which are not contacted yet.

    Raises:
        ConfigError: the key is not in the environment, or the answers' log-probabilities are wanted.
        DataError: a row has no prompt.
    """
    if generation.logprobs:
        raise ConfigError("generation.logprobs: true, but a model behind a server gives none; leave it out")
    new_links(server)
    asked, faults = rows_with_prompts(rows, on_bad_record)
    fields = [request_fields(server, generation), *(conversation_fields(row.prompt) for row in asked)]

    def answers(places: Sequence[int]) -> AbstractContextManager[Answerer]:
        own = [asked[place] for place in places]
        return nullcontext(EndpointAnswers(server, own, generation.n, generation))

    return Questions(
        asked,
        faults,
        # Not the addresses: servers come back at others, and each machine may have one of its own.
        {"requests": described_hash({"fields": fields}), "model": server.model},
        [[place] for place in range(len(asked))],
        str,
        "",
        answers,
    )
