"""Ask the batcher for the answers to a request, within its time, and only as long as somebody waits for them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import partial

from posttrain.serve.asked import Asked
from posttrain.serve.batching import Batcher, Ended, Event, Failed, Job, Piece, Scored
from posttrain.web.refusal import Refusal

Placed = tuple[int, Piece | Ended | Scored]
"""An event, after the number of its prompt."""


class Answers:
    """The answers to the prompts of one request; they are waiting once this is created.

    Args:
        is_alone: whether the request has a seed, which must repeat its answers.
        deadline: of the event loop's clock.

    Raises:
        Refusal: too much is waiting.
    """

    def __init__(self, batcher: Batcher, model: str, asked: Sequence[Asked], is_alone: bool, deadline: float) -> None:
        self._batcher, self._deadline = batcher, deadline
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._jobs = [
            Job(model, each.request, each.sampling, is_alone, each.is_scored, partial(self._tell, place))
            for place, each in enumerate(asked)
        ]
        batcher.submit(self._jobs)

    async def events(self) -> AsyncGenerator[Placed]:
        """What comes, until all is there; whoever stops to listen cancels the rest.

        Raises:
            Refusal: it failed, or took too long.
        """
        left = sum(job.is_scored + job.request.n * (job.sampling.max_new_tokens > 0) for job in self._jobs)
        try:
            while left:
                async with asyncio.timeout_at(self._deadline):
                    place, event = await self._events.get()
                if isinstance(event, Failed):
                    raise event.refusal
                left -= isinstance(event, Ended | Scored)
                yield place, event
        except TimeoutError:
            raise Refusal("too_slow", "the answer took longer than the server allows (--limit seconds)") from None
        finally:
            self._batcher.cancel(self._jobs)

    def cancel(self) -> None:
        """Forget the answers."""
        self._batcher.cancel(self._jobs)

    def _tell(self, place: int, event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._events.put_nowait, (place, event))
