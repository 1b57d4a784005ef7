"""Whose turn it is among several servers with the same model: the one with the least to do, if it works.

A server that fails is left out for a while, each time for longer, and then asked one thing at a time until it answers.
If all fail, all are asked, so that a request ends with an error when it has failed often enough.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from posttrain.base.http import PassingError
from posttrain.inference.servers.link import BusyError, Link

T = TypeVar("T")
logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_LOOK_SECONDS = 0.02


@dataclass
class _Server:
    """One of the servers; times are those of `time.monotonic`.

    Attributes:
        busy_until: when it wants to be asked again.
        failures: in a row, those at the same time counted once.
        out_until: when it is asked again after failures, while others work.
        open: number of requests in flight.
    """

    link: Link
    busy_until: float = 0.0
    failures: int = 0
    out_until: float = 0.0
    open: int = 0

    def may_work(self, now: float) -> bool:
        """Whether it has not failed since it last answered, or it is time to try one request."""
        return not self.failures or (self.open == 0 and now >= self.out_until)

    def failed(self, error: PassingError, now: float) -> None:
        """Leave it out for a while."""
        if isinstance(error, BusyError):
            self.busy_until = now + error.wait_seconds
        elif now >= self.out_until:
            self.failures += 1
            self.out_until = now + min(_FIRST_PAUSE_SECONDS * 2.0 ** (self.failures - 1), _LONGEST_PAUSE_SECONDS)


class Turns:
    """Distributes requests; only the coroutines of one event loop may use it."""

    def __init__(self, links: Sequence[Link], most: int) -> None:
        """`most`: requests in flight at each server."""
        self._servers = [_Server(link) for link in links]  # the one that was chosen last comes last
        self._most = most

    async def taken(self, ask: Callable[[Link], Awaitable[T]]) -> T:
        """What `ask` returns for the server whose turn it is; PassingError if that fails, and another one may not."""
        server = await self._chosen()
        server.open += 1
        try:
            answer = await ask(server.link)
        except PassingError as error:
            before = server.failures
            server.failed(error, time.monotonic())
            if len(self._servers) > 1 and server.failures > before == 0:
                logger.warning("%s; it is left out until it answers again", error)
            raise PassingError(str(error)) from error  # how long the server is to be left alone is settled here
        finally:
            server.open -= 1
        if server.failures and len(self._servers) > 1:
            logger.warning("%s is used again", server.link.place)
        server.failures, server.out_until = 0, 0.0
        return answer

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            await server.link.close()

    async def _chosen(self) -> _Server:
        while True:
            now = time.monotonic()
            free = [each for each in self._servers if each.open < self._most and now >= each.busy_until]
            if any(each.may_work(now) for each in self._servers):
                free = [each for each in free if each.may_work(now)]
            if free:
                chosen = min(free, key=lambda each: each.open)
                self._servers.sort(key=lambda each: each is chosen)
                return chosen
            await asyncio.sleep(_LOOK_SECONDS)
