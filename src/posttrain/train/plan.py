"""Parts of the `--dry-run` plan for trainers whose rows a curriculum draws."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.table import Table

from posttrain.base.console import console, new_table
from posttrain.base.processes import process_count
from posttrain.base.text import first_line
from posttrain.config.sections.datasets import StageConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.data.curriculum.curriculum import Curriculum, Draw
from posttrain.data.curriculum.stages import epochs_in_steps
from posttrain.models.adapters.fit import require_adapter_fits
from posttrain.models.location import ModelLocation, locate_model
from posttrain.runs.directory import RunDirectory
from posttrain.train.memory import GIB, Phase, Situation, cheapest_changes
from posttrain.train.optim.schedules import schedule_in_words

if TYPE_CHECKING:
    from posttrain.data.curriculum.step_plan import StepPlanner
    from posttrain.train.cost.estimate import Estimate

_SAMPLED_STEPS = 100


def stage_table(curriculum: Curriculum, max_steps: int) -> Table:
    """The curriculum as a table: each stage's steps, and the rows and epochs of each data set in it."""
    columns = ("stage", "steps", "data set", "rows drawn", "share", "epochs in all")
    table = new_table("Curriculum", *columns, words=("data set",))
    epochs = curriculum.epochs_per_dataset()
    start = 0
    for index, stage in enumerate(curriculum.stages):
        draws = curriculum.draws_per_dataset(index)
        for first, (dataset, rows) in enumerate(draws.items()):
            table.add_row(
                "" if first else stage.name,
                "" if first else f"{start + 1}–{stage.until_step}",
                dataset,
                f"{rows:,}",
                f"{rows / sum(draws.values()):.1%}",
                f"{epochs[dataset]:.2f}",
            )
        start = stage.until_step
    if max_steps < start:
        table.caption = f"training.max_steps stops at step {max_steps}"
    return table


def show_epochs(stages: Sequence[StageConfig], curriculum: Curriculum) -> None:
    """Print which steps the stages are that a config gives in epochs; `curriculum` is made of them."""
    ends = [stage.until_step for stage in curriculum.stages]
    for line in epochs_in_steps(stages, ends, curriculum.sizes):
        console.print(line)


def find_model(model: ModelConfig) -> ModelLocation:
    """Locate the model, and check that its adapter fits it if one is named.

    Raises:
        ModelError: there is no such model, or its adapter does not fit it.
    """
    location = locate_model(model.name, model.key)
    if model.adapter is not None:
        require_adapter_fits(model.adapter, model)
    return location


def trained_weights(model: ModelConfig, lora: LoraConfig | None) -> str:
    """What is trained, in a few words."""
    if model.adapter is not None:
        return f"continuing from the adapter {model.adapter}"
    if lora is None:
        return "all weights trained"
    return f"LoRA r={lora.r} on {lora.target_modules}" + (f", starting from {lora.init}" if lora.init else "")


def step_lines(training: TrainingConfig, max_steps: int, unit: str) -> Iterator[str]:
    """Lines on the size of a step in `unit`s, such as rows, and on the schedule."""
    yield f"optimizer step  {training.rows_per_step} {unit}: {pieces_in_words(training)}"
    yield f"steps           {schedule_in_words(training, max_steps)}"


def pieces_in_words(training: TrainingConfig) -> str:
    """How an optimizer step is cut up."""
    ranks = process_count()
    processes = f"{ranks} process{'es' * (ranks > 1)}"
    if training.micro_batch_tokens is not None:
        return f"up to {training.micro_batch_tokens} tokens at once × {processes}"
    at_once = training.micro_batch_size
    return f"{at_once} at once × {processes} × {training.rows_per_step // (at_once * ranks)} micro-batches"


def require_batching(training: TrainingConfig, model: ModelConfig, longest: int) -> None:
    """Refuse `batching: padding_free` for a model that cannot do it with rows of up to `longest` tokens.

    Raises:
        ModelError: as loading it for training would.
    """
    if not training.padding_free:
        return
    from posttrain.models.load import choose_backend
    from posttrain.models.model_shape import require_packing

    if choose_backend(model).name == "hf":  # another is refused with its kernels
        require_packing(model, longest)


def show_experts(config: Any) -> None:
    """Print what is trained of a model with experts, whose config is that of any trainer; nothing for other models.

    Raises:
        ModelError: as loading it for training would.
    """
    from posttrain.models.adapters.experts import experts_in_words
    from posttrain.models.kernels.router_balance import router_balance
    from posttrain.models.model_shape import outline_with_experts

    model = outline_with_experts(config)
    if model is not None:
        routers = router_balance(model, config.training.router_loss)
        quantised = config.model.quantization != "none"
        console.print(f"experts         {experts_in_words(model, quantised=quantised)}")
        counted = "not counted" if routers is None else f"load-balancing loss counted × {routers.coefficient:g}"
        console.print(f"routers         {counted}")


def show_estimate(config: BaseModel, compute: Callable[[], "Estimate"]) -> None:
    """Print what a run's steps cost here, or why that is unknown, and what to change if there is too little memory."""
    try:
        found = compute()
    except Exception as error:  # noqa: BLE001  # whatever a model's own code raises, the plan is worth reading
        reason = first_line(error)
        console.print(f"estimate        none: {reason}")
        return
    console.print(estimate_line(found))
    if found.bytes > found.available:
        situation = Situation(config.model_dump(mode="json"), Phase.STEP, found.on_cuda, found.longest)
        console.print("WARNING         this is more memory than is available; what would help, cheapest first:")
        console.print("\n".join(f"                {change}" for change in cheapest_changes(situation)))


def estimate_line(found: "Estimate") -> str:
    """The plan's line for an estimate."""
    need, free = f"{found.bytes / GIB:.1f} GiB of memory", f"({found.available / GIB:.1f} GiB available)"
    if not found.seconds:
        return f"estimate        at most {need} to train {free}{'; ' * bool(found.untimed)}{found.untimed}"
    mean, least, most = sum(found.seconds) / len(found.seconds), min(found.seconds), max(found.seconds)
    before = f" plus {_spoken(found.before)} beforehand for the reference" * (found.before > 0)
    return (
        f"estimate        about {_spoken(mean)} per step ({_spoken(least)} to {_spoken(most)}), "
        f"{_spoken(mean * found.count)} in total{before}, without evaluations; {need} {free}"
    )


def _spoken(seconds: float) -> str:
    """A duration with about two digits, in a readable unit."""
    if seconds < 99.5:
        return f"{seconds:.{0 if seconds >= 9.95 else 1 if seconds >= 0.95 else 2}f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes < 48 * 60 else f"{minutes / 1440:.1f} days"


def show_resume_point(
    run: RunDirectory, identity: dict[str, Any], curriculum: Curriculum, max_steps: int, *, resume: bool
) -> None:
    """Print what a resumed run would do; ConfigError if it would not be the same run."""
    from posttrain.runs.finish import finished_result
    from posttrain.runs.resume import find_resume_point

    point = find_resume_point(run, identity, curriculum, resume=resume)
    if resume and finished_result(run, max_steps):
        console.print(f"{run.path} is finished: nothing is left to resume")
    elif point.checkpoint is not None:
        console.print(f"{run.path} would continue from step {point.counters.step}")


def rows_left_to_train(rows: int, fraction: float | None) -> int:
    """Rows of a data set that remain after the share to be held out."""
    return rows if fraction is None else rows - max(1, round(fraction * rows))


def sampled_steps(count: int) -> list[int]:
    """Indices of at most 100 of `count` optimizer steps, evenly spaced, including the first and the last."""
    sampled = min(count, _SAMPLED_STEPS)
    return sorted({round(number * (count - 1) / max(1, sampled - 1)) for number in range(sampled)})


def micro_batches_of(planner: "StepPlanner", step: int) -> Iterator[list[Draw]]:
    """The rows of each micro-batch of a step that one process trains; every process trains the same number."""
    plan = planner.plan(step)
    for rows in plan.micro_batches[:: process_count()]:
        yield [plan.draws[slot] for slot in rows]
