"""The steps that a config means: those that it names, and the merges that starting from a merged model needs."""

from posttrain.pipeline.context import Context
from posttrain.pipeline.steps.base import StepConfig
from posttrain.pipeline.steps.decide import DecideStep
from posttrain.pipeline.steps.merge import MergeStep
from posttrain.pipeline.steps.training import StartConfig, TrainingStep


def unrolled(context: Context) -> dict[str, StepConfig]:
    """All steps by name; the merge of a step X, where another one starts from it so, is named X.merged.

    Raises:
        ConfigError: a step starts from one that makes no model, or its config is wrong.
    """
    found = dict(context.steps)
    for name, step in context.steps.items():
        if name in context.skipped or not isinstance(step, TrainingStep):
            continue
        if step.start is None or step.start.as_ != "merged":
            continue
        start = step.start.from_
        may_be_base = isinstance(context.steps[start], DecideStep)
        if may_be_base or context.model(start).adapter is not None:
            found.setdefault(merged_name(start), MergeStep(run="merge", of=start))
            start = merged_name(start)
        found[name] = step.model_copy(update={"start": StartConfig.model_validate({"from": start})})
    return found


def merged_name(name: str) -> str:
    """The name of the step that merges the adapter of another one."""
    return f"{name}.merged"
