"""Several servers as one rollout engine: which one answers what, and who answers instead when it fails.

A prompt's completions go to one server, which computes the prompt once; prompts are dealt to the servers that work in
turn. A completion belongs to its key, is asked of one server at a time and accepted once, so that none is lost or
doubled when a server fails.
"""

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from posttrain.base.http import LoopThread, PassingError
from posttrain.config.sections.servers import ServersConfig, WeightsSent
from posttrain.errors import ConfigError, ServerError, ToolkitError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.servers.link import BusyError
from posttrain.inference.servers.members import Keep, Member, Members
from posttrain.inference.servers.probe import require_scores, tolerance
from posttrain.inference.servers.weight_folder import SharedFolder, label_of, require_whole
from posttrain.inference.servers.wire import Needs, Server
from posttrain.inference.vllm import require_plain_logprobs

T = TypeVar("T")

_TRIES = 3
"""A completion that fails this often at servers that work is given up, unless they are merely busy."""
_LONGEST_PAUSE_SECONDS = 5.0


class _Patience:
    """How long to ask servers that work for a completion that they fail to give."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renewed()

    def renewed(self) -> float:
        """Begin anew, since the fault was a server's that is out of use now; the pause before the next try."""
        self._began, self._tries = time.monotonic(), 0
        return 0.0

    def after(self, error: PassingError) -> float:
        """Seconds to wait after this failure; ServerError if it was one too many."""
        self._tries += 1
        most = math.inf if isinstance(error, BusyError) else _TRIES
        if time.monotonic() - self._began > self._seconds or self._tries >= most:
            raise ServerError(f"{error}; {self._tries} tries failed, though the server says that it works")
        return max(error.wait_seconds, min(0.1 * 2.0**self._tries, _LONGEST_PAUSE_SECONDS))


class ServerPool:
    """A rollout engine over servers that generate the same way; only one call at a time.

    `close` may come while another thread waits for a call, which then fails.
    """

    def __init__(
        self,
        servers: Mapping[str, Server],
        needs: Needs,
        config: ServersConfig,
        resources: ExitStack,
        *,
        keep: Keep,
    ) -> None:
        """Contact no server yet; see `connect`.

        Args:
            servers: by their addresses.
            resources: what `close` closes; the pool's own are added to it.
        """
        self._members = Members(servers, needs, config, keep)
        self._needs = needs
        self._config = config
        self._folder = SharedFolder(config)
        self._loop = LoopThread("connection to the servers")
        self._resources = resources
        resources.callback(self._folder.close)
        resources.callback(lambda: self._loop.close(self._disconnect()))  # called first

    @property
    def weights(self) -> WeightsSent:
        """What `load` takes: the folder of an adapter or of all weights; nothing if `off`."""
        return self._needs.weights

    @property
    def versions(self) -> tuple[str, ...]:
        """Name and version of each server's software, for the manifest."""
        return tuple(member.version for member in self._members.all)

    @property
    def failures(self) -> int:
        """How often a server failed so far."""
        return sum(member.absences for member in self._members.all)

    @property
    def repeats(self) -> bool:
        """Whether the same requests give the same completions, up to what the servers' batching changes."""
        return all(member.repeats for member in self._members.all)

    def connect(self, seconds: float) -> None:
        """Wait until all servers answer, and check each; after `seconds`, fewer suffice if they are `min_servers`.

        Raises:
            ConfigError: a server lacks what the run needs.
            ServerError: too few answer in time, or one cannot be used.
        """
        self._run(self._members.connect(seconds))

    def load(self, weights: Path, version: int) -> None:
        """Give the servers the weights in this folder, known as `version`: the number of optimizer steps behind them.

        Unless `servers.folder` is set, the servers read the folder itself, and it must stay as it is until the next
        load: a server that comes back gets its weights from there.

        Raises:
            ModelError: the folder does not hold whole weights.
            ServerError: a server refuses them, or samples with others afterwards; or too few servers work.
        """
        if self._needs.weights == "off":
            raise ConfigError("servers.weights: off, so the servers keep the weights that they were started with")
        require_whole(weights, self._needs.weights)
        label = label_of(version)
        self._members.change_weights(self._folder.put(weights, label), label)
        self._run(self._members.until_enough())
        self._folder.drop_old()

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of all requests, ordered by key.

        Raises:
            ConfigError: a prompt and its completion could exceed the servers' length, or log-probabilities are wanted
                together with filters or a penalty.
            ServerError: a server refuses a request or returns something unusable; or too few servers work.
        """
        require_plain_logprobs(sampling)
        longest = max((len(request.prompt_ids) for request in requests), default=0)
        if longest + sampling.max_new_tokens > self._needs.max_length:
            raise ConfigError(
                f"a prompt of {longest} tokens plus {sampling.max_new_tokens} new tokens exceeds the servers' "
                f"{self._needs.max_length}: allow fewer new tokens or shorten the prompts"
            )
        return self._run(self._complete(requests, sampling, finished or FinishedCompletions()))

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of ids[1:] at temperature 1, in nats, after a check that all servers that work agree.

        Raises:
            ConfigError: the text is as long as the servers' room, of which scoring needs one token more.
            ServerError: two servers disagree, so one has other weights; or too few servers work.
        """
        if len(ids) >= self._needs.max_length:
            raise ConfigError(f"servers can score at most {self._needs.max_length - 1} tokens, but here are {len(ids)}")
        return self._run(self._score(ids))

    def close(self) -> None:
        """Close the connections, remove copies of weights, and stop servers that were started for this run."""
        self._resources.close()

    async def _disconnect(self) -> None:
        for member in self._members.all:
            await member.server.close()

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run(action)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None

    async def _complete(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, finished: FinishedCompletions
    ) -> dict[Key, Completion]:
        keys = [(position, sample) for position, request in enumerate(requests) for sample in range(request.n)]
        done = finished.of(requests)

        async def make(key: Key) -> None:
            finished.add(requests, key, await self._one(key, requests[key[0]], sampling))

        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._members.watch())
            await asyncio.gather(*[group.create_task(make(key)) for key in keys if key not in done])
            watch.cancel()
        return finished.of(requests)

    async def _one(self, key: Key, request: GenerationRequest, sampling: Sampling) -> Completion:
        """One completion, from the server whose turn it is or, if that fails, from another one that works."""
        position, sample = key
        patience = _Patience(self._config.retry_seconds)
        while True:
            member = await self._chosen(position)
            async with member.slots:
                if not member.works:
                    continue
                absences = member.absences
                try:
                    made = await member.server.generate(
                        request.prompt_ids, request.seeds[sample], sampling, self._members.label
                    )
                except PassingError as error:
                    await self._members.suspect(member, error)
                    pause = patience.after(error) if member.works else patience.renewed()
                else:
                    if member.absences == absences:
                        return made
                    continue  # it may have been sampled before the server got its weights back
            await asyncio.sleep(pause)

    async def _chosen(self, position: int) -> Member:
        """The server whose turn it is, once enough work."""
        while not self._members.are_enough:
            await asyncio.sleep(0.1)
        able = self._members.able
        return able[position % len(able)]

    async def _score(self, ids: Sequence[int]) -> list[float]:
        while True:
            await self._members.until_enough()
            found: list[tuple[str, list[float]]] = []
            for member in self._members.able:
                try:
                    found.append((member.server.place, await member.server.score(ids, self._members.label)))
                except PassingError as error:
                    await self._members.suspect(member, error)
            for place, scores in found:
                require_scores(f"{place} or {found[0][0]}", scores, found[0][1], tolerance(self._needs))
            if found:
                return found[0][1]


def _first_of(group: BaseExceptionGroup) -> BaseException:
    """The error to show for several that came at once: one of ours if there is one."""
    errors: list[BaseException] = []
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(error.exceptions)
        else:
            errors.append(error)
    return next((error for error in errors if isinstance(error, ToolkitError)), errors[0])
