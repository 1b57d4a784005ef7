"""From a request to the token ids of its prompts, its seeds and its sampling options; one thread only."""

import secrets
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from posttrain.base.text import first_of
from posttrain.config.sections.generation import GenerationConfig, why_alike
from posttrain.conversation.encoder import HfTextEncoder
from posttrain.conversation.messages import parse_conversation
from posttrain.errors import DataError
from posttrain.inference.answering.rows import Room, too_long
from posttrain.inference.engine import GenerationRequest, Sampling, derive_seed
from posttrain.inference.load import ModelText
from posttrain.serve.models import Models
from posttrain.serve.schemas import ChatRequest, CompletionRequest
from posttrain.web.refusal import Refusal

_SEED_BITS = 56


@dataclass(frozen=True)
class Asked:
    """One prompt of a request: with its seeds, how it is answered, and whether it is scored."""

    request: GenerationRequest
    sampling: Sampling
    is_scored: bool = False


def prepare(models: Models, body: ChatRequest | CompletionRequest, most_answers: int) -> list[Asked]:
    """The prompts of a request, in their order.

    Raises:
        Refusal: there is no such model, too many answers are wanted, a prompt is too long or no prompt, or options
            contradict each other.
    """
    _require_model(models, body.model)
    if body.stream_options is not None and not body.stream:
        raise Refusal("bad_request", "stream_options: only with stream: true")
    text = models.text(body.model)
    max_length = models.weights[body.model].chat.max_length
    prompts = [_chat(text, body)] if isinstance(body, ChatRequest) else _prompts(text, body)
    if len(prompts) * body.n > most_answers:
        wanted = f"n: {body.n}" + (f" for each of {len(prompts)} prompts" if len(prompts) > 1 else "")
        raise Refusal("bad_request", f"{wanted} is more than the {most_answers} answers that a request may have")
    sampling = _sampling(body, models.generation)
    is_scored = isinstance(body, CompletionRequest) and body.prompt_logprobs is not None
    wanted = _wanted_tokens(body, is_scored)
    asked = []
    for place, ids in enumerate(prompts):
        seeds = tuple(_seed(body.seed, place, number) for number in range(body.n))
        length = _length(len(ids), wanted, sampling.max_new_tokens, Room(max_length, 0, text.positions))
        own = replace(sampling, max_new_tokens=length)
        asked.append(Asked(GenerationRequest(tuple(ids), seeds), own, is_scored))
    return asked


def _require_model(models: Models, name: str) -> None:
    if name not in models.weights:
        near = get_close_matches(name, models.weights, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {first_of(list(models.weights))}"
        raise Refusal("not_found", f"there is no model {name[:100]!r}; {hint}")


def _chat(text: ModelText, body: ChatRequest) -> list[int]:
    try:
        conversation = parse_conversation(body.messages)
        if conversation.messages[-1].role == "assistant":
            raise DataError("the last message is the assistant's, so there is nothing to answer")
        return text.encoder.prompts([conversation])[0]
    except DataError as error:
        fault = str(error)
        raise Refusal("bad_request", fault if fault.startswith("messages") else f"messages: {fault}") from None


def _prompts(text: ModelText, body: CompletionRequest) -> list[list[int]]:
    given: list[Any] = [*body.prompt] if isinstance(body.prompt, list) else [body.prompt]
    if given and all(isinstance(each, int) for each in given):
        given = [given]
    if not given:
        raise Refusal("bad_request", "prompt: it is empty")
    prompts = HfTextEncoder(text.tokenizer).encode(given) if isinstance(given[0], str) else [list(ids) for ids in given]
    size = len(text.tokenizer)
    for ids in prompts:
        if not ids:
            raise Refusal("bad_request", "prompt: a prompt has at least one token")
        if (largest := max(ids)) >= size:
            raise Refusal("bad_request", f"prompt: there is no token {largest}; the vocabulary has {size:,}")
    return prompts


def _sampling(body: ChatRequest | CompletionRequest, generation: GenerationConfig) -> Sampling:
    """The options of a request; those that it leaves out are the config's."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if given.get("top_k") == -1:
        given["top_k"] = 0  # as other servers write no limit
    if body.stop is not None:
        given["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    logprobs = body.logprobs is not None and body.logprobs is not False
    sampling = replace(Sampling.of(generation, logprobs=logprobs), **given)
    if fault := why_alike(body.n, sampling.temperature):
        raise Refusal("bad_request", fault)
    if body.stream and (logprobs or getattr(body, "prompt_logprobs", None) is not None):
        raise Refusal("bad_request", "logprobs: not with stream: true")
    return sampling


def _wanted_tokens(body: ChatRequest | CompletionRequest, is_scored: bool) -> int | None:
    """How long an answer may be; None if the request does not say."""
    given = {body.max_tokens, getattr(body, "max_completion_tokens", None)} - {None}
    if len(given) > 1:
        raise Refusal("bad_request", "max_tokens and max_completion_tokens differ; give one of them")
    wanted = next(iter(given), None)
    if wanted == 0 and not is_scored:
        raise Refusal("bad_request", "max_tokens: 0 is for prompt_logprobs alone")
    return wanted


def _length(prompt: int, wanted: int | None, usual: int, room: Room) -> int:
    """How many tokens may be generated after a prompt of this length.

    Where the request does not say, it is the config's number or what room there is.
    """
    left = usual if room.positions is None else min(usual, max(1, room.positions - prompt))
    length = left if wanted is None else wanted
    if room.positions is None and length > max(room.max_length, usual):
        raise Refusal("bad_request", f"max_tokens: {length} is more than {max(room.max_length, usual)}")
    if fault := too_long(prompt, replace(room, max_new_tokens=length)):
        raise Refusal("bad_request", fault.replace("max_new_tokens", "max_tokens"))
    return length


def _seed(given: int | None, place: int, number: int) -> int:
    """As toolkit-predict seeds sample `number` of the row `place` of its first file."""
    return secrets.randbits(_SEED_BITS) if given is None else derive_seed(given, 0, place, number)
