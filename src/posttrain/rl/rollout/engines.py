"""What completes prompts during training: an engine of `posttrain.inference` that follows the weights."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from posttrain.config.sections.engines import EngineName
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.models.backend import LoadedModel
from posttrain.rl.config.rl import RLConfig
from posttrain.rl.rollout import hf, vllm


class RolloutEngine(Protocol):
    """Completes prompts with the weights of the last `update`."""

    def update(self, step: int) -> None:
        """Take the weights that the training model has now, after `step` optimizer steps; once is enough for each."""
        ...

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """All completions of all requests."""
        ...

    def close(self) -> None:
        """Give back the memory."""
        ...


_STARTS: dict[EngineName, Callable[[RLConfig, LoadedModel, frozenset[int], Path], RolloutEngine]] = {
    "hf": hf.start,
    "vllm": vllm.start,
}


def rollout_engine(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> RolloutEngine:
    """The engine that `rollout.engine` names, for the model that is trained in the run directory `run`.

    Where several processes train together, they must have found each other before: vLLM would make a group of its own.

    Args:
        end_ids: tokens that end a completion.

    Raises:
        ConfigError: it is not installed, cannot take the adapter alone, or the processes are on several machines.
        ModelError: it cannot load the model, or the model cannot hold a prompt and its completion.
    """
    return _STARTS[config.rollout.engine](config, loaded, end_ids, run)


def sampling_of(config: Any, *, logprobs: bool = False) -> Sampling:
    """What an engine is told of a sampling section."""
    return Sampling(
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        stop=config.stop,
        logprobs=logprobs,
    )
