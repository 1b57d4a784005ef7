"""Open servers as the rollout engine of a run: one for all ranks, of which the first asks the servers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from posttrain.base.processes import is_main_process, process_rank
from posttrain.config.sections.servers import ServerKind, ServersConfig
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.servers.open import open_server_engine, unanswered, weights_sent
from posttrain.inference.servers.pool import ServerPool
from posttrain.inference.servers.wire import Needs
from posttrain.inference.weight_sync import AdapterAlone, MergedWeights, Weights
from posttrain.models.backend import LoadedModel
from posttrain.models.hf import model_files
from posttrain.rl.config import RLConfig
from posttrain.rl.rollout.engines.vllm import adapter_hindrance
from posttrain.train.parallel.ranks import RankExchange

T = TypeVar("T")
logger = logging.getLogger(__name__)


class ServerEngine:
    """A RolloutEngine over servers; all ranks call `load`, `complete` and `score` together, in the same order.

    The first rank asks for all of them, so that the servers get the weights once, and share all requests.
    """

    def __init__(self, pool: ServerPool | None, exchange: RankExchange) -> None:
        """`pool`: None on all ranks but the first."""
        self._pool, self._exchange = pool, exchange

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says about the servers, on the first rank."""
        if self._pool is None:
            return {}
        return {
            "weights": self._pool.weights,
            "servers": list(self._pool.versions),
            "seeds_repeat": self._pool.repeats,
            "note": "server batches decide the last digits",
        }

    @property
    def failures(self) -> int:
        """How often a server failed so far, on the first rank."""
        return 0 if self._pool is None else self._pool.failures

    def load(self, weights: Path | None, version: int) -> None:
        """Give the servers the weights in a folder, which must stay until the next call has succeeded.

        Raises:
            ModelError: they are not whole.
            ServerError: a server refuses them, or too few work; also the other methods raise it.
        """
        assert weights is not None
        self._by_first(f"the load of weights {version}", lambda pool: pool.load(weights, version))

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of this rank's requests; the first rank's `finished` gets those of all ranks."""
        asked = self._exchange.everywhere("requests", lambda: list(requests))
        everything = [each for theirs in asked for each in theirs]
        found = self._by_first("completions", lambda pool: pool.complete(everything, sampling, finished))
        first = sum(map(len, asked[: process_rank()]))
        mine = range(first, first + len(requests))
        return {(place - first, number): made for (place, number), made in found.items() if place in mine}

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats, at temperature 1."""
        return self._by_first("scores", lambda pool: pool.score(ids))

    def close(self) -> None:
        """Close the connections, and stop servers that were started for the run."""
        if self._pool is not None:
            self._pool.close()

    def _by_first(self, label: str, ask: Callable[[ServerPool], T]) -> T:
        """What the first rank gets from the servers."""
        pool = self._pool
        return cast(T, self._exchange.everywhere(label, lambda: None if pool is None else ask(pool))[0])


def sent_weights(config: RLConfig, loaded: LoadedModel) -> Weights:
    """What the servers are sent after each step.

    Raises:
        ConfigError: they cannot be sent the adapter alone.
    """
    kind, servers = _chosen(config)
    return AdapterAlone(loaded.model) if _mode(kind, servers, loaded) == "adapter" else MergedWeights(loaded)


def open_servers(
    config: RLConfig,
    loaded: LoadedModel,
    weights: Weights,
    end_ids: frozenset[int],
    folder: Path,
    run: Path,
    exchange: RankExchange,
) -> ServerEngine:
    """Start or reach the servers, and check them.

    Args:
        weights: what they are sent.
        folder: holds the weights as they are now.

    Raises:
        ConfigError: a server lacks what the run needs; the message has the command that would be right.
        ServerError: a server does not answer in time, or cannot be used.
    """
    kind, servers = _chosen(config)
    needs = _needs(config, loaded, weights, end_ids)
    if servers.start is not None and not weights.adapter_rank:
        # The servers of a run may have to take tokens that the base lacks, so they start with the run's own model.
        needs = replace(needs, model=str(folder))
    opened = list[ServerPool]()

    def open_pool() -> None:
        if is_main_process():
            # The run's folder may be emptied later.
            opened.append(open_server_engine(kind, servers, needs, run.with_name(f"{run.name}.servers")))
            if not opened[0].repeats:
                logger.warning("the servers ignore seeds, so the run would not repeat")

    exchange.everywhere("the start of servers", open_pool)
    return ServerEngine(opened[0] if opened else None, exchange)


def require_servers_fit(config: RLConfig, loaded: LoadedModel, weights: Weights) -> list[str]:
    """Ask each server that runs already whether it has the options that the run needs.

    Args:
        loaded: may be on torch's meta device.
        weights: what they are sent.

    Returns:
        Why each of the others could not be asked: it does not answer yet.

    Raises:
        ConfigError, ServerError: as `open_servers`.
    """
    kind, servers = _chosen(config)
    return unanswered(kind, servers, _needs(config, loaded, weights, frozenset()))


def _needs(config: RLConfig, loaded: LoadedModel, weights: Weights, end_ids: frozenset[int]) -> Needs:
    return Needs(
        model_files(config.model),
        dtype=str(loaded.compute_dtype).removeprefix("torch."),
        max_length=config.rollout.max_prompt_tokens + config.longest_completion,
        end_ids=end_ids,
        adapter_rank=weights.adapter_rank,
    )


def _chosen(config: RLConfig) -> tuple[ServerKind, ServersConfig]:
    servers = config.rollout.servers
    assert servers is not None
    return cast(ServerKind, config.rollout.engine), servers


def _mode(kind: ServerKind, servers: ServersConfig, loaded: LoadedModel) -> str:
    rank = 0 if adapter_hindrance(loaded) else loaded.model.peft_config["default"].r
    return weights_sent(kind, servers, rank)
