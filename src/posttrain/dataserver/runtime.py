"""Everything that a config names, read and checked, with nothing running yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.dataset_rows import Rows
from posttrain.dataserver.data.loading import Report, load_datasets
from posttrain.dataserver.data.samples import Samples
from posttrain.dataserver.data.sampling import Sampler, Sides, split_rows
from posttrain.dataserver.description import describe
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.remote import RemoteGrader
from posttrain.dataserver.grading.cache import GradeBook
from posttrain.dataserver.grading.pool import GradingPool, GradingPools
from posttrain.dataserver.grading.questions import graders_in_use
from posttrain.dataserver.grading.worker import Setup
from posttrain.dataserver.identity import config_id
from posttrain.dataserver.schemas import Meta
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True)
class Loaded:
    """What a config names, in memory."""

    config: DataserverConfig
    datasets: Mapping[str, Rows]
    sides: Mapping[str, Sides]
    graders: Mapping[str, Grader]
    samples: Samples
    sampler: Sampler
    meta: Meta

    @classmethod
    def read(cls, config: DataserverConfig, report: Report) -> Self:
        """Read the data of a config.

        Raises:
            DataError, ConfigError: data or config are wrong, all faults in one message, or a grader cannot work here.
        """
        datasets = load_datasets(config, report)
        sides = split_rows(config, datasets)
        graders = graders_in_use(config)
        for name, grader in graders.items():
            if notice := grader.notice():
                report(f"graders.{name}: {notice}")
        identity = config_id(config, datasets, graders)
        return cls(
            config=config,
            datasets=datasets,
            sides=sides,
            graders=graders,
            samples=Samples(config, datasets, sides),
            sampler=Sampler(config, sides),
            meta=describe(config, identity, datasets, sides, graders),
        )

    def new_pool(self) -> GradingPools:
        """Grading processes for these graders: the user's own run apart from those that come with the package."""
        local = {name: grader for name, grader in self.graders.items() if not isinstance(grader, RemoteGrader)}
        preload = tuple(dict.fromkeys(module for grader in local.values() for module in grader.preload))
        own = {name: grader for name, grader in local.items() if grader.is_users_code}
        others = {name: grader for name, grader in local.items() if not grader.is_users_code}
        return GradingPools([self._pool(graders, preload) for graders in (others, own) if graders])

    def _pool(self, graders: Mapping[str, Grader], preload: tuple[str, ...]) -> GradingPool:
        limits = self.config.limits
        setup = Setup(
            graders=graders,
            seconds=limits.grader_seconds,
            memory_bytes=int(limits.worker_memory_mb * 2**20),
            hidden=self._secrets(),
        )
        return GradingPool(limits.worker_count, setup, limits.worker_tasks, preload)

    def _secrets(self) -> frozenset[str]:
        """The variables that hold what the config has the server know; a grader of the user's own has no use for it."""
        named = [grader.token_env for grader in self.graders.values() if isinstance(grader, RemoteGrader)]
        return frozenset(filter(None, [*named, self.config.listen.token_env, "PGPASSWORD"]))

    @property
    def asks_services(self) -> bool:
        """Whether a grader asks another service."""
        return any(isinstance(grader, RemoteGrader) for grader in self.graders.values())

    @property
    def has_graders_to_load(self) -> bool:
        """Whether a grader has something to load, which takes time or may fail."""
        return any(type(grader).load is not Grader.load for grader in self.graders.values())

    async def load_graders(self, pool: GradingPools) -> None:
        """Load all graders, those that run in processes there.

        Raises:
            ConfigError: some cannot be loaded; all in one message.
        """
        problems = await pool.check_graders()
        for name, grader in self.graders.items():
            if isinstance(grader, RemoteGrader):
                try:
                    grader.load()
                except ConfigError as error:
                    problems.append(f"graders.{name}: {error}")
        if problems:
            raise ConfigError("\n".join(problems))

    def new_book(self, pool: GradingPools, client: "httpx.AsyncClient | None") -> GradeBook:
        """A grade book for these graders; `client` is for those that ask other services, if any does."""
        return GradeBook(self.graders, pool, client, int(self.config.limits.cache_mb * 2**20))
