"""What a server tells of itself, to a trainer in `/meta` and to a person in the plan of a dry run."""

from collections.abc import Mapping
from importlib.metadata import version

from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.dataset_rows import Rows
from posttrain.dataserver.data.sampling import Sides
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.code_stdio import CodeStdio
from posttrain.dataserver.grading.questions import stage_plan
from posttrain.dataserver.schemas import PROTOCOL_VERSION, DatasetMeta, Limits, Meta, StageMeta


def describe(
    config: DataserverConfig,
    identity: str,
    datasets: Mapping[str, Rows],
    sides: Mapping[str, Sides],
    graders: Mapping[str, Grader],
) -> Meta:
    """The answer to `/meta`."""
    return Meta(
        protocol_version=PROTOCOL_VERSION,
        server_version=version("posttrain-toolkit"),
        config_id=identity,
        seed=config.seed,
        prompts_per_iteration=config.prompts_per_iteration,
        iteration_stride=config.iteration_stride,
        total_iterations=config.total_iterations,
        adaptive=config.adaptive is not None,
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
    drawn = [name for name, weight in stage.mix.items() if weight]
    if config.adaptive is not None and config.adaptive.easy is not None:
        drawn.append(config.adaptive.easy.dataset)
    plans = {name: stage_plan(config, index, name) for name in drawn}
    whole = sum(stage.mix.values())
    return StageMeta(
        name=stage.name,
        from_iteration=config.stages[index - 1].until_step if index else 0,
        until_iteration=stage.until_step,
        mix={name: weight / whole for name, weight in stage.mix.items()},
        graders={name: dict(plan.weights) for name, plan in plans.items()},
        gates={name: list(plan.gates) for name, plan in plans.items()},
    )
