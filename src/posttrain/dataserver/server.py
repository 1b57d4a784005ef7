"""A running dataserver: startup, background work and shutdown."""

import asyncio
from functools import partial

from posttrain.dataserver.adaptive.sampler import AdaptiveSampler
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.remote import RemoteGrader, new_client
from posttrain.dataserver.grading.golds import Progress, check_golds
from posttrain.dataserver.journal.database import memory_database, open_database
from posttrain.dataserver.journal.plans import PlanStore
from posttrain.dataserver.journal.steps import StepStore
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.metrics import Metrics
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.service import Service

# Numbers and groups of reported steps that a server without a journal keeps: about 30 MB.
_MOST_ROWS_IN_MEMORY = 100_000


class DataServer:
    """Serves a loaded config."""

    def __init__(self, loaded: Loaded) -> None:
        """Open the journal.

        Raises:
            ConfigError, ServerError: the journal cannot be opened.
        """
        config = loaded.config
        self.loaded = loaded
        self.meta = loaded.meta
        self.metrics = Metrics()
        self.is_ready = False
        self.database = open_database(config.journal) if config.journal.enabled else None
        self.journal = JournalWriter(self.database, config.journal) if self.database is not None else None
        self._pool = loaded.new_pool()
        self._loading: asyncio.Task[None] | None = None
        asks_services = any(isinstance(grader, RemoteGrader) for grader in loaded.graders.values())
        self._client = new_client() if asks_services else None
        self._book = loaded.new_book(self._pool, self._client)
        adaptive = (
            AdaptiveSampler(loaded, config.adaptive, PlanStore(self.database))
            if config.adaptive is not None and self.database is not None
            else None
        )
        self.steps = StepStore(self.database) if self.database else StepStore(memory_database(), _MOST_ROWS_IN_MEMORY)
        self.service = Service(loaded, self._book, self.journal, self.metrics, adaptive, self.steps)
        self._watch()

    def _watch(self) -> None:
        self.metrics.sandboxes(self.meta.sandboxes)
        if (journal := self.journal) is not None:
            for name in ("written", "dropped", "queued"):
                read = partial(lambda field: float(getattr(journal.stats(), field)), name)
                self.metrics.watch(f"journal_{name}", f"Rows of the journal that are {name}", read)
        self.metrics.watch("waiting_completions", "Completions waiting for a grader", lambda: self._book.waiting)
        self.metrics.watch("cache_hits", "Completions that needed no grading", lambda: self._book.cache_hits)
        self.metrics.watch("worker_deaths", "Grading processes that died", lambda: self._pool.deaths)
        self.metrics.watch("ready", "Whether the gold answers are checked", lambda: float(self.is_ready))

    async def warm_up(self, progress: Progress) -> None:
        """Load the graders and check the gold answers; only then are requests served.

        Raises:
            ConfigError, DataError: a grader cannot be loaded, or rows cannot be graded.
        """
        loaded = self.loaded
        # Always starts the grading processes, so that the first completions need not wait for them.
        self._loading = asyncio.create_task(loaded.load_graders(self._pool))
        if any(type(grader).load is not Grader.load for grader in loaded.graders.values()):
            await self._loading
        await check_golds(loaded, self._pool, progress)
        self.is_ready = True

    async def close(self) -> None:
        """Write acknowledged rewards to the journal and stop the processes. All requests must have been answered."""
        self.is_ready = False
        if self._loading is not None:
            self._loading.cancel()
        await self._book.close()
        if self.journal is not None:
            await asyncio.to_thread(self.journal.close)
        self.steps.engine.dispose()
        await asyncio.to_thread(self._pool.close)
        if self._client is not None:
            await self._client.aclose()
