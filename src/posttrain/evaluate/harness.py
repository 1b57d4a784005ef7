"""lm_eval's tasks: what they ask, as conversations, and what their metrics say of given answers.

lm_eval asks a model while it evaluates. Here it evaluates twice: once with a model that only writes down what it is
asked, and, when everything has been answered, with one that says those answers.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval import evaluate  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

from posttrain.conversation.messages import Conversation, parse_conversation
from posttrain.data.splits import by_rank
from posttrain.errors import ConfigError, DataError

_KINDS = ("generate_until", "multiple_choice")
_SEED = 1234  # of the choice of examples, as lm_eval has it
_LENGTH, _STOP = "max_gen_toks", "until"


@dataclass
class Asked:
    """What a task asks, in its order.

    Attributes:
        prompts: to be answered.
        sampling: how, as keys of a task's `sampling`.
        continuations: prompts, and texts whose log-probability is asked.
    """

    prompts: list[Conversation] = field(default_factory=list)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    continuations: list[tuple[Conversation, str]] = field(default_factory=list)


@dataclass(frozen=True)
class HarnessTask:
    """A task of lm_eval, with its data.

    Attributes:
        chosen: the places of the questions that are asked, in increasing order.
    """

    name: str
    path: Path
    loaded: Any
    chosen: Sequence[int]

    @classmethod
    def load(cls, config: Mapping[str, Any], path: Path, shots: int | None, prompts: int | None) -> "HarnessTask":
        """Read a task.

        Args:
            config: the task's config, whose data are local files.
            path: where it is from, for messages.
            shots: number of examples; None takes the task's own.
            prompts: ask only this many questions, chosen by their content; None asks all.

        Raises:
            ConfigError, DataError: lm_eval cannot read it, or it measures something else than answers and choices.
        """
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        name = str(config["task"])
        try:
            loaded = TaskManager(include_defaults=False).load([dict(config)])
            task = loaded["tasks"][name]
            questions = [json.dumps(question, sort_keys=True, default=str) for question in task.eval_docs]
        except Exception as error:  # lm_eval has no errors of its own
            raise ConfigError(f"{path}: lm_eval cannot read the task: {type(error).__name__}: {error}") from error
        kind = task.get_config("output_type")
        if kind not in _KINDS:
            raise ConfigError(f"{path}: output_type is {kind}, but only {' and '.join(_KINDS)} can be measured")
        if (task.get_config("repeats") or 1) != 1:
            raise ConfigError(f"{path}: repeats is not 1; for several answers to a prompt use a graded task with n")
        if not questions:
            raise DataError(f"{path}: there are no questions")
        if shots is not None:
            task.set_config(key="num_fewshot", value=shots)
        elif task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        hashed = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") for text in questions]
        ranked = by_rank(np.array(hashed, dtype=np.uint64), 0)[:prompts]
        return cls(name, path, loaded, sorted(ranked.tolist()))

    def asked(self) -> Asked:
        """What it asks; ConfigError if that cannot be a conversation."""
        writing = _Writing()
        self._evaluate(writing)
        return writing.asked

    def measured(self, asked: Asked, texts: Sequence[str], logprobs: Sequence[float]) -> list[dict[str, Any]]:
        """What lm_eval logs of each question and filter, with the last message of its `prompt` and what was `said`.

        Args:
            texts: answers to the prompts.
            logprobs: of the continuations, in nats.
        """
        lines = self._evaluate(_Saying(asked, texts, logprobs))
        return [{**line, "prompt": _last_message(line["arguments"][0][0]), "said": _said(line)} for line in lines]

    def _evaluate(self, model: LM) -> list[dict[str, Any]]:
        self.loaded["tasks"][self.name].set_fewshot_seed(_SEED)
        results = evaluate(
            lm=model,
            task_dict=self.loaded,
            samples={self.name: list(self.chosen)},
            bootstrap_iters=0,
            apply_chat_template=True,
            fewshot_as_multiturn=True,
        )
        assert results is not None  # it is None in other processes than the first
        return results["samples"][self.name]


class _Prompting(LM):
    """Has conversations as prompts, written as JSON, because lm_eval passes prompts on as text."""

    @property
    def tokenizer_name(self) -> str:
        """Part of the name of a cache that is not used."""
        return "none"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as text; ConfigError if its end is to be continued."""
        if not add_generation_prompt:
            raise ConfigError("the task begins the answer itself (gen_prefix), which cannot be asked")
        return json.dumps(chat_history, ensure_ascii=False)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Not asked by the tasks that are read."""
        raise NotImplementedError


class _Writing(_Prompting):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Asked()

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Nothing, for each prompt."""
        options = [request.args[1] for request in requests]
        if any(each != options[0] for each in options):
            raise ConfigError("the task answers its questions in different ways")
        self.asked.prompts = [_conversation(request.args[0]) for request in requests]
        self.asked.sampling = sampling_of(options[0])
        return [""] * len(requests)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """The same for each text."""
        self.asked.continuations = [(_conversation(request.args[0]), request.args[1]) for request in requests]
        return [(0.0, False)] * len(requests)


class _Saying(_Prompting):
    """Says what has been answered to the same requests in the same order."""

    def __init__(self, asked: Asked, texts: Sequence[str], logprobs: Sequence[float]) -> None:
        super().__init__()
        self._asked, self._texts, self._logprobs = asked, texts, logprobs

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """The answers."""
        assert [_conversation(request.args[0]) for request in requests] == self._asked.prompts
        return list(self._texts)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """The log-probabilities; whether a text is the most likely one is not known, and no task here uses it."""
        assert [(_conversation(each.args[0]), each.args[1]) for each in requests] == self._asked.continuations
        return [(logprob, False) for logprob in self._logprobs]


def sampling_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a task's `sampling` that mean lm_eval's `generation_kwargs`.

    Raises:
        ConfigError: one of them means nothing here.
    """
    stop = options.get(_STOP) or ()
    sampled = bool(options.get("do_sample", False)) or float(options.get("temperature") or 0) > 0
    found: dict[str, Any] = {"stop": (stop,) if isinstance(stop, str) else tuple(stop)}
    found["temperature"] = float(options.get("temperature", 1.0)) if sampled else 0.0
    found |= {key: options[key] for key in ("top_p", "top_k") if key in options and sampled}
    if _LENGTH in options:
        found["max_new_tokens"] = int(options[_LENGTH])
    known = {_STOP, _LENGTH, "do_sample", "temperature", "top_p", "top_k"}
    if unknown := options.keys() - known:
        raise ConfigError(
            f"generation_kwargs: {sorted(unknown)[0]} means nothing here, only {', '.join(sorted(known))}"
        )
    return found


def _conversation(prompt: str) -> Conversation:
    if not prompt:
        raise ConfigError("the task asks for texts without a prompt (acc_mutual_info), which is no conversation")
    return parse_conversation(json.loads(prompt))


def _last_message(prompt: str) -> str:
    return _conversation(prompt).messages[-1].content


def _said(line: Mapping[str, Any]) -> str:
    """The answer, or the most likely one of those that were scored."""
    first = line["resps"][0][0]
    if isinstance(first, str):
        return first
    likely = max(range(len(line["resps"])), key=lambda place: line["resps"][place][0][0])
    return line["arguments"][likely][1]
