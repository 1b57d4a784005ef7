"""Load and check everything that a config names, before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from posttrain.base.cache import file_digest
from posttrain.data.curriculum.stages import epochs_in_steps
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.dataset_rows import Rows, json_digest
from posttrain.dataserver.data.loading import Report, load_datasets
from posttrain.dataserver.data.samples import Samples
from posttrain.dataserver.data.sampling import Sampler, Sides, split_rows
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.code_stdio import CodeStdio
from posttrain.dataserver.graders.remote import RemoteGrader
from posttrain.dataserver.grading.cache import GradeBook
from posttrain.dataserver.grading.pool import GradingPool, GradingPools
from posttrain.dataserver.grading.questions import graders_in_use, stage_plan
from posttrain.dataserver.grading.worker import Setup
from posttrain.dataserver.schemas import PROTOCOL_VERSION, DatasetMeta, Limits, Meta, StageMeta, TaskMeta
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    import httpx

# Data sets, graders and the tokenizer are hashed separately; the rest changes no prompt and no reward.
_NOT_PART_OF_ID = {"data_root", "tokenizer", "datasets", "graders", "listen", "limits", "journal"}


@dataclass(frozen=True)
class Loaded:
    """Everything that a config names, loaded."""

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
            DataError, ConfigError: data or config are wrong (one message lists all faults), or a grader cannot work on
                this machine.
        """
        datasets = load_datasets(config, report)
        sides = split_rows(config, datasets)
        sizes = {name: len(side.train) for name, side in sides.items()}
        given, config = config.stages, config.with_ends(sizes)
        for line in epochs_in_steps(given, [stage.end for stage in config.stages], sizes):
            report(line)
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
        """Create the grading processes; users' own graders run in separate processes from the built-in ones."""
        local = {name: grader for name, grader in self.graders.items() if not isinstance(grader, RemoteGrader)}
        preload = tuple(dict.fromkeys(module for grader in local.values() for module in grader.preload))
        own = {name: grader for name, grader in local.items() if grader.is_users_code}
        others = {name: grader for name, grader in local.items() if not grader.is_users_code}
        limits, memory_bytes = self.config.limits, int(self.config.limits.worker_memory_mb * 2**20)
        tokens = [grader.token_env for grader in self.graders.values() if isinstance(grader, RemoteGrader)]
        hidden = frozenset(filter(None, [*tokens, self.config.listen.token_env, "PGPASSWORD"]))
        setups = [Setup(graders, limits.grader_seconds, memory_bytes, hidden) for graders in (others, own) if graders]
        return GradingPools([GradingPool(limits.worker_count, each, limits.worker_tasks, preload) for each in setups])

    async def load_graders(self, pool: GradingPools) -> None:
        """Load all graders: local ones in the grading processes, remote ones here.

        Raises:
            ConfigError: some cannot be loaded; one message lists them all.
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
        """Create a grade book for these graders; `client` is needed only by graders that call other services."""
        return GradeBook(self.graders, pool, client, int(self.config.limits.cache_mb * 2**20))


def describe(
    config: DataserverConfig,
    identity: str,
    datasets: Mapping[str, Rows],
    sides: Mapping[str, Sides],
    graders: Mapping[str, Grader],
) -> Meta:
    """Build the answer to `/meta`."""
    return Meta(
        protocol_version=PROTOCOL_VERSION,
        server_version=version("posttrain-toolkit"),
        config_id=identity,
        seed=config.seed,
        prompts_per_iteration=config.prompts_per_iteration,
        iteration_stride=config.iteration_stride,
        total_iterations=config.total_iterations,
        adaptive=config.adaptive is not None,
        lag=None if config.adaptive is None else config.adaptive.lag,
        substitutes=config.substitutes,
        stages=[_stage(config, index) for index in range(len(config.stages))],
        datasets=[
            DatasetMeta(
                name=name,
                rows=len(sides[name].train),
                validation_rows=len(sides[name].validation),
                too_long_rows=rows.too_long,
                digest=rows.digest,
            )
            for name, rows in datasets.items()
        ],
        graders={name: grader.type_name for name, grader in graders.items()},
        sandboxes={name: grader.sandbox for name, grader in graders.items() if isinstance(grader, CodeStdio)},
        limits=Limits(
            max_batch_size=config.limits.batch_size,
            max_items=config.limits.items,
            max_body_bytes=config.limits.body_bytes,
            max_completion_chars=config.limits.completion_chars,
            grade_timeout_seconds=config.limits.grade_seconds,
        ),
    )


def _stage(config: DataserverConfig, index: int) -> StageMeta:
    stage = config.stages[index]
    mix = stage.mix or {}  # every stage has one by now
    drawn = [name for name, weight in mix.items() if weight]
    if config.adaptive is not None and config.adaptive.easy is not None:
        drawn.append(config.adaptive.easy.dataset)
    plans = {name: stage_plan(config, index, name) for name in drawn}
    tasks = {
        name: {task: stage_plan(config, index, name, task) for task in config.datasets[name].grading_by_task}
        for name in drawn
    }
    whole = sum(mix.values())
    return StageMeta(
        name=stage.name,
        from_iteration=config.stages[index - 1].end if index else 0,
        until_iteration=stage.end,
        mix={name: weight / whole for name, weight in mix.items()},
        graders={name: dict(plan.weights) for name, plan in plans.items()},
        gates={name: list(plan.gates) for name, plan in plans.items()},
        tasks={
            name: {task: TaskMeta(graders=dict(plan.weights), gates=list(plan.gates)) for task, plan in by_task.items()}
            for name, by_task in tasks.items()
            if by_task
        },
    )


def config_id(config: DataserverConfig, datasets: Mapping[str, Rows], graders: Mapping[str, Grader]) -> str:
    """Hash the config, the data's content and the graders; equal ids give equal prompts and rewards."""
    return json_digest(
        {
            "protocol": PROTOCOL_VERSION.split(".")[0],
            "version": version("posttrain-toolkit"),
            "config": config.model_dump(mode="json", exclude=_NOT_PART_OF_ID),
            "tokenizer": file_digest(config.tokenizer) if config.tokenizer is not None else None,
            # In config order, which is also the order of the held-out rows.
            "datasets": [
                [name, dataset.model_dump(mode="json", exclude={"path"}), datasets[name].digest]
                for name, dataset in config.datasets.items()
            ],
            "graders": {
                name: [_without_folder(grader.model_dump(mode="json")), grader.identity()]
                for name, grader in graders.items()
            },
        }
    )


def _without_folder(grader: dict[str, Any]) -> dict[str, Any]:
    """Reduce the path of users' code to its last part, the same on every machine; `identity` covers the content."""
    path = grader.get("path")
    return {**grader, "path": Path(path).name} if isinstance(path, str) else grader
