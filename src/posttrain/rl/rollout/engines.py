"""The protocol of rollout engines, which generate with the weights in training."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from posttrain.config.sections.engines import EngineName
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.models.backend import LoadedModel
from posttrain.rl.config import RLConfig
from posttrain.rl.rollout import hf, vllm
from posttrain.rl.rollout.rollout import Prompt, Rollout


class RolloutEngine(Protocol):
    """Completes prompts with the weights of the last `update`."""

    def update(self, step: int) -> None:
        """Take over the training model's current weights, after `step` optimizer steps; once per step is enough."""
        ...

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """All completions of all requests."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


_STARTS: dict[EngineName, Callable[[RLConfig, LoadedModel, frozenset[int], Path], RolloutEngine]] = {
    "hf": hf.start,
    "vllm": vllm.start,
}


def rollout_engine(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> RolloutEngine:
    """The engine that `rollout.engine` names, for the model trained in the run directory `run`.

    If several processes train together, they must be connected before: vLLM would create a process group of its own.

    Args:
        end_ids: tokens that end a completion.

    Raises:
        ConfigError: the engine is not installed, cannot sleep on this device or take the adapter alone, or the
            processes are on several machines.
        ModelError: the engine cannot load the model, or the model cannot hold a prompt and its completion.
    """
    return _STARTS[config.rollout.engine](config, loaded, end_ids, run)


def completed(
    engine: RolloutEngine, asked: Sequence[tuple[Prompt, int, int]], tokenizer: Any, sampling: Sampling, version: int
) -> list[Rollout]:
    """One rollout per (prompt, completion number, seed); it has no tokens if the prompt is too long.

    Args:
        asked: these triples, those of one prompt adjacent.
        version: number of optimizer steps behind the engine's weights.
    """
    answerable = [each for each in asked if not each[0].is_too_long]
    requests = [
        GenerationRequest(prompt.ids, tuple(seed for _, _, seed in several))
        for prompt, several in groupby(answerable, key=itemgetter(0))
    ]
    made = engine.complete(requests, sampling) if requests else {}
    in_order = iter(sorted(made.items()))
    return [
        Rollout.of(prompt, number, None if prompt.is_too_long else next(in_order)[1], tokenizer, sampling, version)
        for prompt, number, _ in asked
    ]
