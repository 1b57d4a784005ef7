"""Several servers as one rollout engine: who answers what, what happens when one fails, and when it comes back.

A prompt's completions go to one server, which computes the prompt once; prompts are dealt to the servers that work in
turn. A completion belongs to its key, is asked of one server at a time and accepted once, so that none is lost or
doubled when a server fails. A server that was away is checked, given the current weights and probed before it is used.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from posttrain.base.http import PassingError
from posttrain.config.sections.servers import ServersConfig, is_loopback
from posttrain.errors import ConfigError, ServerError, ToolkitError
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.inference.servers.link import BusyError, RefusedError
from posttrain.inference.servers.probe import examine, require_scores, tolerance, weights_in_use
from posttrain.inference.servers.weight_folder import SharedFolder, label_of, require_whole
from posttrain.inference.servers.wire import Needs, Server, StaleError
from posttrain.inference.vllm import require_plain_logprobs

logger = logging.getLogger(__name__)

T = TypeVar("T")

_OPEN_REQUESTS = 256
"""Requests that one server has at a time; it queues what it cannot run at once."""
_TRIES = 3
"""A completion that fails this often at servers that work is given up, unless they are merely busy."""
_LONGEST_PAUSE_SECONDS = 5.0


class ServerOutageError(ServerError):
    """Too few servers work, and waiting did not help."""


@dataclass
class _Member:
    """One server of the pool.

    Attributes:
        works: whether it has the current weights and was not seen to fail since.
        examined: whether it was probed since it was last seen to fail.
        repeats: whether the same seed gave the same completion twice.
        fault: why it does not work.
        absences: how often it was taken out of use.
    """

    url: str
    server: Server
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_OPEN_REQUESTS))
    works: bool = False
    examined: bool = False
    repeats: bool = True
    version: str = ""
    fault: str = "not asked yet"
    absences: int = 0


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
    """A rollout engine over servers that generate the same way; only one call at a time."""

    def __init__(
        self,
        servers: Mapping[str, Server],
        needs: Needs,
        config: ServersConfig,
        resources: ExitStack,
        *,
        check: Callable[[], None],
    ) -> None:
        """Contact no server yet; see `connect`.

        Args:
            servers: by their addresses.
            resources: what `close` closes; the pool's own are added to it.
            check: called while servers are waited for; an exception ends the wait.
        """
        self._members = [_Member(url, server) for url, server in servers.items()]
        self._needs = needs
        self._config = config
        self._check = check
        self._folder = SharedFolder(config)
        self._label: str | None = None
        self._path = ""
        self._expected: dict[str | None, tuple[str, list[float]]] = {}
        self._runner = asyncio.Runner()
        self._resources = resources
        for release in (self._folder.close, self._runner.close, self._disconnect):  # the last one is called first
            resources.callback(release)

    @property
    def versions(self) -> tuple[str, ...]:
        """Name and version of each server's software, for the manifest."""
        return tuple(member.version for member in self._members)

    @property
    def failures(self) -> int:
        """How often a server failed so far."""
        return sum(member.absences for member in self._members)

    @property
    def repeats(self) -> bool:
        """Whether the same requests give the same completions, up to what the servers' batching changes."""
        return all(member.repeats for member in self._members)

    def connect(self, seconds: float) -> None:
        """Wait until all servers answer, and check each.

        Raises:
            ConfigError: a server lacks what the run needs.
            ServerError: a server does not answer within `seconds`, or cannot be used.
        """
        self._run(self._until_work(len(self._members), seconds))

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
        self._path, self._label, self._expected = self._folder.put(weights, label), label, {}
        for member in self._members:
            member.works = False
        self._run(self._until_work(self._config.min_servers, self._config.retry_seconds))
        self._folder.drop_old()

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
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
        return self._run(self._complete(requests, sampling))

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

    def _disconnect(self) -> None:
        for member in self._members:
            self._runner.run(member.server.close())

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(action)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None

    async def _complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        keys = [(position, sample) for position, request in enumerate(requests) for sample in range(request.n)]
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch())
            tasks = {key: group.create_task(self._one(key, requests[key[0]], sampling)) for key in keys}
            await asyncio.gather(*tasks.values())
            watch.cancel()
        return {key: task.result() for key, task in tasks.items()}

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
                        request.prompt_ids, request.seeds[sample], sampling, self._label
                    )
                except PassingError as error:
                    await self._suspect(member, error)
                    pause = patience.after(error) if member.works else patience.renewed()
                else:
                    if member.absences == absences:
                        return made
                    continue  # it may have been sampled before the server got its weights back
            await asyncio.sleep(pause)

    async def _chosen(self, position: int) -> _Member:
        """The server whose turn it is, once enough work."""
        while len(able := self._able()) < self._config.min_servers:
            await asyncio.sleep(0.05)
        return able[position % len(able)]

    async def _suspect(self, member: _Member, error: PassingError) -> None:
        """Take the server out of use if it no longer works."""
        if member.works and (isinstance(error, StaleError) or not await member.server.is_alive()) and member.works:
            member.works, member.examined, member.fault = False, False, str(error)
            member.absences += 1
            logger.warning("%s; %d of %d servers work", error, len(self._able()), len(self._members))

    async def _watch(self) -> None:
        """Bring servers back while completions are generated; ServerOutageError if too few work for too long."""
        while True:
            if len(self._able()) < len(self._members):
                await self._until_work(self._config.min_servers, self._config.retry_seconds)
            await asyncio.sleep(0.5)

    async def _until_work(self, needed: int, seconds: float) -> None:
        """Try to bring back each server that does not work, again and again until `needed` of them do.

        Raises:
            ServerError: two servers disagree, or fewer work after that time; or, like ConfigError, one refuses and too
                few others work.
        """
        deadline, pause = time.monotonic() + seconds, 0.1
        while True:
            refusals = await asyncio.gather(*(self._bring_back(member) for member in self._members if not member.works))
            if len(self._able()) >= needed:
                return
            for refusal in filter(None, refusals):
                raise refusal
            self._check()
            if time.monotonic() + pause > deadline:
                raise self._outage(needed, seconds)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _bring_back(self, member: _Member) -> ToolkitError | None:
        """Check a server, give it the current weights, and compare what it computes with what the others do.

        Returns:
            Why it cannot be used, unless that may pass.
        """
        server, label = member.server, self._label
        try:
            member.version = await server.check()
            if not await server.is_alive():
                raise PassingError(f"{server.place} says that it does not work")
            if not self._config.insecure_network and not is_loopback(member.url):
                await server.require_closed()
            if label is not None:
                await server.load(self._path, label)
            if not member.examined:
                member.repeats = (await examine(server, self._needs, label)).repeats
                member.examined = True
            scores = await weights_in_use(server, self._needs, label)
        except PassingError as error:
            member.fault = str(error)
            return None
        except (ConfigError, RefusedError) as error:
            member.fault = str(error)
            logger.warning("%s", error)
            return error
        self._require_agreement(server.place, scores)
        if member.absences:
            logger.warning("%s is used again", server.place)
        member.works = True
        return None

    def _require_agreement(self, place: str, scores: list[float]) -> None:
        first, expected = self._expected.setdefault(self._label, (place, scores))
        require_scores(f"{place} or {first}", scores, expected, tolerance(self._needs))

    async def _score(self, ids: Sequence[int]) -> list[float]:
        while True:
            await self._until_work(self._config.min_servers, self._config.retry_seconds)
            found: list[tuple[str, list[float]]] = []
            for member in self._able():
                try:
                    found.append((member.server.place, await member.server.score(ids, self._label)))
                except PassingError as error:
                    await self._suspect(member, error)
            for place, scores in found:
                require_scores(f"{place} or {found[0][0]}", scores, found[0][1], tolerance(self._needs))
            if found:
                return found[0][1]

    def _able(self) -> list[_Member]:
        return [member for member in self._members if member.works]

    def _outage(self, needed: int, seconds: float) -> ServerOutageError:
        faults = "; ".join(dict.fromkeys(member.fault for member in self._members if not member.works))
        return ServerOutageError(
            f"{len(self._able())} of {len(self._members)} servers work, {needed} are needed, and waiting {seconds:g} s "
            f"did not help: {faults}. Look into their logs and start them again; --resume continues from the last "
            "checkpoint"
        )


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
