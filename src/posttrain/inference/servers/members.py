"""Which of several servers work, and how one that does not is brought back.

A server works while it has the current weights and was not seen to fail since. One that was away is checked, given the
weights and probed before it counts again; what it computes must be what the others compute.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from posttrain.base.http import PassingError
from posttrain.config.sections.servers import ServersConfig, is_loopback
from posttrain.errors import ConfigError, ServerError, ToolkitError
from posttrain.inference.servers.link import RefusedError
from posttrain.inference.servers.probe import examine, require_scores, tolerance, weights_in_use
from posttrain.inference.servers.wire import Needs, Server, ServerOutageError, StaleError

logger = logging.getLogger(__name__)

_OPEN_REQUESTS = 256
"""Requests that one server has at a time; it queues what it cannot run at once."""
_LONGEST_PAUSE_SECONDS = 5.0

Keep = Callable[[Collection[str], str], None]
"""Called while servers are waited for, with the addresses of those that work and the path of the current weights, which
is empty before the first load; an exception ends the wait."""


@dataclass
class Member:
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


class Members:
    """The servers of a pool."""

    def __init__(self, servers: Mapping[str, Server], needs: Needs, config: ServersConfig, keep: Keep) -> None:
        """Contact no server yet; `servers` are by their addresses."""
        self.all = [Member(url, server) for url, server in servers.items()]
        self.label: str | None = None
        """Names the current weights; None for those that the servers were started with."""
        self._path = ""
        self._needs = needs
        self._config = config
        self._keep = keep
        # A server that is started again has to load the model first.
        self._patience = max(config.retry_seconds, config.start.start_seconds if config.start is not None else 0.0)
        self._expected: tuple[str, list[float]] | None = None

    @property
    def able(self) -> list[Member]:
        """Those that work, in the order of the config."""
        return [member for member in self.all if member.works]

    @property
    def are_enough(self) -> bool:
        """Whether as many work as must."""
        return len(self.able) >= self._config.min_servers

    def change_weights(self, path: str, label: str) -> None:
        """From now on a server works once it has the weights in `path`."""
        self._path, self.label, self._expected = path, label, None
        for member in self.all:
            member.works = False

    async def connect(self, seconds: float) -> None:
        """Wait until all work; after that time go on with fewer, if they are enough.

        Raises:
            ConfigError: a server lacks what the run needs.
            ServerError: too few answer in time, or one cannot be used.
        """
        try:
            await self._until(len(self.all), seconds)
        except ServerOutageError as error:
            if not self.are_enough:
                raise
            logger.warning("%s", error)

    async def until_enough(self) -> None:
        """Try to bring back all that do not work, again and again until enough do.

        Raises:
            ServerError: a server refuses, and too few others work; two disagree; or too few work for too long.
        """
        try:
            await self._until(self._config.min_servers, self._patience)
        except ConfigError as error:  # the run has begun, so it ends with a checkpoint
            raise ServerError(str(error)) from error

    async def watch(self) -> None:
        """Bring servers back for as long as this runs; raises as `until_enough`."""
        pause = 0.0
        while True:
            absent = len(self.able) < len(self.all)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS) if absent and pause else 0.25
            if absent:
                await self.until_enough()
            await asyncio.sleep(pause)

    async def suspect(self, member: Member, error: PassingError) -> None:
        """Take a server out of use after an error, if it no longer works."""
        if member.works and (isinstance(error, StaleError) or not await member.server.is_alive()) and member.works:
            self._lost(member, error)

    def _lost(self, member: Member, error: PassingError) -> None:
        member.works, member.examined, member.fault = False, False, str(error)
        member.absences += 1
        logger.warning("%s; %d of %d servers work", error, len(self.able), len(self.all))

    async def _until(self, needed: int, seconds: float) -> None:
        deadline, pause = time.monotonic() + seconds, 0.1
        while True:
            self._keep_running()
            refusals = await asyncio.gather(*(self._bring_back(member) for member in self.all if not member.works))
            if len(self.able) >= needed:
                self._keep_running()
                return
            for refusal in filter(None, refusals):
                raise refusal
            if time.monotonic() + pause > deadline:
                raise self._outage(needed, seconds)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _keep_running(self) -> None:
        self._keep({member.url for member in self.able}, self._path)

    async def _bring_back(self, member: Member) -> ToolkitError | None:
        """Check a server, give it the current weights, and compare what it computes with what the others do.

        Returns:
            Why it cannot be used, unless that may pass.
        """
        try:
            scores = await self._prepared(member)
        except PassingError as error:
            if member.examined and not await member.server.is_alive():  # it failed between two batches
                self._lost(member, error)
            member.fault = str(error)
            return None
        except (ConfigError, RefusedError) as error:
            if member.fault != str(error):
                logger.warning("%s", error)
            member.fault = str(error)
            return error
        place = member.server.place
        if self._expected is None:
            self._expected = (place, scores)
        first, expected = self._expected
        require_scores(f"{place} or {first}", scores, expected, tolerance(self._needs))
        if member.absences:
            logger.warning("%s is used again", place)
        member.works = True
        return None

    async def _prepared(self, member: Member) -> list[float]:
        """Make a server ready to sample with the current weights; its log-probabilities of the probe's prompt."""
        server, label = member.server, self.label
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
        return await weights_in_use(server, self._needs, label)

    def _outage(self, needed: int, seconds: float) -> ServerOutageError:
        faults = "; ".join(dict.fromkeys(member.fault for member in self.all if not member.works))
        return ServerOutageError(
            f"{len(self.able)} of {len(self.all)} servers work, {needed} are needed, and waiting {seconds:g} s did not "
            f"help: {faults}. Look into their logs and start them again; --resume continues from the last checkpoint"
        )
