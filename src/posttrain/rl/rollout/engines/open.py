"""Open the rollout engine of a config: in the trainer's process, or in one of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from posttrain.base.processes import process_rank
from posttrain.config.sections.engines import EngineName
from posttrain.inference.engine import Completion, GenerationRequest, Key, RolloutEngine, Sampling
from posttrain.inference.loaded import LoadedModelEngine
from posttrain.inference.own_engine import OwnEngine
from posttrain.inference.process.engine import EngineProcess
from posttrain.inference.process.specs import ModelSpec, OwnSpec, VllmSpec
from posttrain.inference.weight_sync import (
    MergedWeights,
    PublishedWeights,
    TrainedParameters,
    Weights,
)
from posttrain.models.backend import LoadedModel, TrainingSettings
from posttrain.models.hf import model_files
from posttrain.rl.config import RLConfig
from posttrain.rl.rollout.engines.config import OwnEngine as OwnEngineConfig
from posttrain.rl.rollout.engines.servers import ServerEngine, open_servers, sent_weights
from posttrain.rl.rollout.engines.threads import engine_threads
from posttrain.rl.rollout.engines.vllm import chosen_weights, vllm_options
from posttrain.rl.rollout.rollout import Prompt, Rollout
from posttrain.train.memory import Phase, during
from posttrain.train.parallel.ranks import RankExchange


@dataclass(frozen=True)
class OpenedEngine:
    """A rollout engine, and how it gets its weights.

    Attributes:
        published: the weights for it; None if it generates with the training model itself.
        is_apart: whether it runs in another process, so that the trainer can go on meanwhile.
        exchange: by which the ranks agree on what their engines did.
    """

    engine: RolloutEngine
    published: PublishedWeights | None
    is_apart: bool
    exchange: RankExchange = field(default_factory=RankExchange)

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says about it."""
        return self.engine.facts if isinstance(self.engine, ServerEngine) else {}

    @property
    def failures(self) -> int | None:
        """How often a server failed so far; None if there are no servers."""
        return self.engine.failures if isinstance(self.engine, ServerEngine) else None

    def close(self) -> None:
        """Close the engine, and remove the files written for it."""
        try:
            self.engine.close()
        finally:
            if self.published is not None:
                self.published.close()


def open_rollout_engine(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> OpenedEngine:
    """The engine that `rollout.engine` names, for the model trained in the run directory `run`.

    If several processes train together, they must be connected before: each has an engine of its own, but all have the
    same servers.

    Args:
        end_ids: tokens that end a completion.

    Raises:
        ConfigError: the engine is not installed, cannot sleep on this device or take the adapter alone, or there is no
            room for the weights.
        ModelError: the engine cannot load the model, or the model cannot hold a prompt and its completion.
        ServerError: the engine's process died, or a server does not answer or cannot be used.
    """
    with during(Phase.ENGINE, "while the rollout engine was started"):
        return _OPENERS[config.rollout.engine_name](config, loaded, end_ids, run)


def engine_weights(config: RLConfig, loaded: LoadedModel) -> Weights:
    """What an engine with a copy of the weights gets after each step.

    Args:
        loaded: may be on torch's meta device, if the weights are not written.

    Raises:
        ConfigError: it cannot get them, cannot take the adapter alone, or cannot sleep on this device.
    """
    return _WEIGHTS[config.rollout.engine_name](config, loaded)


def _hf(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> OpenedEngine:
    """Transformers: the training model itself, or a copy of it in a process of its own."""
    if not config.rollout.is_apart:
        return OpenedEngine(LoadedModelEngine(loaded, end_ids, config.rollout.batch_size), None, is_apart=False)
    settings = TrainingSettings(
        chatml=config.chat.template == "chatml",
        max_length=config.rollout.max_prompt_tokens + config.rollout.longest,
        gradient_checkpointing=False,
        seed=config.training.seed,
        liger_kernel=config.training.liger_kernel,
    )
    spec = ModelSpec(config.model, config.lora, settings, end_ids, config.rollout.batch_size)
    return _started(config, engine_weights(config, loaded), run, lambda folder: _process(config, spec, run))


def _vllm(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> OpenedEngine:
    """vLLM, which gets all weights or the adapter."""
    weights = engine_weights(config, loaded)
    options = vllm_options(config, loaded, weights.adapter_rank)

    def start(folder: Path) -> RolloutEngine:
        model = Path(model_files(config.model)) if weights.adapter_rank else folder
        if config.rollout.is_apart:
            return _process(config, VllmSpec(model, options, end_ids), run)
        from posttrain.inference.vllm import VllmEngine

        return VllmEngine(model, end_ids, options)

    return _started(config, weights, run, start)


def _servers(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> OpenedEngine:
    """Servers, which get all weights or the adapter."""
    weights, exchange = engine_weights(config, loaded), RankExchange()

    def start(folder: Path) -> RolloutEngine:
        return open_servers(config, loaded, weights, end_ids, folder, run, exchange)

    return _started(config, weights, run, start, exchange)


def _own(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> OpenedEngine:
    """An engine of the user's, which gets all weights."""
    chosen = config.rollout.engine
    assert isinstance(chosen, OwnEngineConfig)

    def start(folder: Path) -> RolloutEngine:
        if config.rollout.is_apart:
            return _process(config, OwnSpec(chosen.path, folder, end_ids, chosen.options), run)
        return OwnEngine(chosen.path, str(folder), end_ids, chosen.options)

    return _started(config, engine_weights(config, loaded), run, start)


def _started(
    config: RLConfig,
    weights: Weights,
    run: Path,
    start: Callable[[Path], RolloutEngine],
    exchange: RankExchange | None = None,
) -> OpenedEngine:
    """The engine that `start` returns for a folder with the weights as they are now."""
    is_apart = config.rollout.is_apart
    published = PublishedWeights(weights, run, config.rollout.weight_versions)
    try:
        engine = start(published.start())
        if not is_apart:
            published.release(-1)
        return OpenedEngine(engine, published, is_apart, exchange or RankExchange())
    except BaseException:
        published.close()
        raise


def _process(config: RLConfig, spec: ModelSpec | VllmSpec | OwnSpec, run: Path) -> EngineProcess:
    log = run.with_name(f"{run.name}.engine-{process_rank()}.log")  # the run's folder may be emptied later
    process = EngineProcess(log, seconds=config.rollout.engine_seconds, threads=engine_threads(config.rollout))
    return process.open(spec)


def _trained_parameters(config: RLConfig, loaded: LoadedModel) -> Weights:
    return TrainedParameters(loaded.model)


def _merged_weights(config: RLConfig, loaded: LoadedModel) -> Weights:
    return MergedWeights(loaded)


_OPENERS: dict[EngineName, Callable[[RLConfig, LoadedModel, frozenset[int], Path], OpenedEngine]] = {
    "hf": _hf,
    "vllm": _vllm,
    "vllm-server": _servers,
    "sglang-server": _servers,
    "own": _own,
}

_WEIGHTS: dict[EngineName, Callable[[RLConfig, LoadedModel], Weights]] = {
    "hf": _trained_parameters,
    "vllm": chosen_weights,
    "vllm-server": sent_weights,
    "sglang-server": sent_weights,
    "own": _merged_weights,
}

Complete = Callable[[Sequence[GenerationRequest], Sampling], dict[Key, Completion]]
"""Completes requests, as `RolloutEngine.complete` does."""


def completed(
    complete: Complete, asked: Sequence[tuple[Prompt, int, int]], tokenizer: Any, sampling: Sampling, version: int
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
    made = complete(requests, sampling)
    in_order = iter(sorted(made.items()))
    return [
        Rollout.of(prompt, number, None if prompt.is_too_long else next(in_order)[1], tokenizer, sampling, version)
        for prompt, number, _ in asked
    ]
