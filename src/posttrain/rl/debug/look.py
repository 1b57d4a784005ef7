"""`toolkit-rl-debug`: complete and grade a few prompts, and report what is wrong."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from posttrain.base.console import console
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError, ModelError
from posttrain.inference.load import load_text
from posttrain.models.load import choose_backend
from posttrain.models.location import locate_model
from posttrain.rl.client.connection import temporary_connection
from posttrain.rl.config import RLConfig
from posttrain.rl.debug.groups import Group, marker_faults, summarise
from posttrain.rl.debug.report import findings, show_findings, show_groups, show_summary
from posttrain.rl.debug.verdicts import filter_table, judged, verdict_findings
from posttrain.rl.rollout.filters.catalogue import Rejection, check_user_filters
from posttrain.rl.rollout.rollout import PromptSource
from posttrain.rl.schedule import RolloutSchedule, require_fit
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory


@dataclass(frozen=True)
class DebugRequest:
    """What to look at.

    Attributes:
        samples: completions of each prompt; None for `rollout.generations`.
        iteration: optimizer steps done so far, which decides the prompts and how they are graded.
        weights: `auto`, `start` or a folder; see `choose_weights`.
        held_out: complete held-out prompts instead of training prompts.
    """

    prompts: int = 4
    samples: int | None = None
    iteration: int = 0
    weights: str = "auto"
    held_out: bool = False


@dataclass(frozen=True)
class Look:
    """The result: prompts with their completions, lengths of many prompts in tokens, what the filters say about each
    group, and what stands out."""

    groups: list[Group]
    lengths: list[int]
    verdicts: list[Rejection | None]
    findings: list[str]


def show_rollouts(config: RLConfig, name: str, request: DebugRequest) -> None:
    """Sample, grade and print, without training or writing a file; errors as `look_at_rollouts`."""
    look = look_at_rollouts(config, name, request)
    filters = config.rollout.filters
    show_groups(look.groups, look.verdicts if filters else None)
    show_summary(look.groups, summarise(look.groups), look.lengths)
    if filters:
        console.print(filter_table(look.groups, look.verdicts, filters), soft_wrap=False)
    show_findings(look.findings)


def look_at_rollouts(config: RLConfig, name: str, request: DebugRequest) -> Look:
    """Sample as training would, and grade.

    Args:
        name: name of the run, whose weights are used if it has any.

    Raises:
        ConfigError, DataError, ModelError: config, dataserver and request do not fit, or there is no such model.
        RunError: a filter of the user's failed.
        ServerError: the dataserver cannot be reached.
    """
    schedule = RolloutSchedule.of(config)
    if not schedule.starts_generation(request.iteration):
        below = request.iteration - request.iteration % schedule.iteration_stride
        above = below + schedule.iteration_stride
        raise ConfigError(
            f"--iteration {request.iteration}: no prompts are sampled at that step; give {below} or {above}"
        )
    check_user_filters(config.rollout.filters)
    weights = choose_weights(config, name, request.weights)
    choose_backend(weights.model)  # before anything imports transformers
    from posttrain.rl.debug import rollouts

    with temporary_connection(config.dataserver) as connection:
        max_steps = require_fit(config, schedule, connection.meta)
        text = load_text(weights.model, config.chat)
        kept = rollouts.KeptSamples(connection.client)
        source = PromptSource(kept, text.encoder, schedule, config.rollout.max_prompt_tokens)
        if request.held_out:
            asked, lengths = rollouts.held_out_prompts(source, connection.meta, request.iteration, request.prompts)
        else:
            lengths = rollouts.prompt_lengths(source, schedule, max_steps)
            asked = rollouts.training_prompts(source, schedule, request.iteration, request.prompts)
        samples = request.samples or config.rollout.generations
        console.print(f"{weights}: {samples} completions for each of {len(asked)} prompts")
        with closing(rollouts.debug_engine(weights, config)) as engine:
            completions = rollouts.sampled(asked, engine, text.tokenizer, config, samples)
        groups = rollouts.graded(asked, completions, connection.client, kept)
    verdicts = judged(groups, config.rollout.filters)
    found = [
        *findings(groups, lengths, config.rollout),
        *verdict_findings(groups, verdicts, config.rollout.stop_without_signal),
        *marker_faults(groups, text.tokenizer, text.encoder),
    ]
    return Look(groups, lengths, verdicts, found)


@dataclass(frozen=True)
class DebugWeights:
    """The model to load, and the adapter on top of it if there is one."""

    model: ModelConfig
    adapter: Path | None

    def __str__(self) -> str:
        return self.model.name if self.adapter is None else f"{self.model.name} with the adapter in {self.adapter}"


def choose_weights(config: RLConfig, name: str, wanted: str = "auto") -> DebugWeights:
    """The weights that `wanted` names; nothing is loaded.

    Args:
        name: name of the run.
        wanted: `auto`: the finished run's weights, else its newest checkpoint's, else those that training starts from;
            `start`: the last of these; anything else is the folder of an adapter, a checkpoint or a model.

    Raises:
        ModelError: there is no such folder, or no model in it.
    """
    if wanted not in ("auto", "start"):
        return _of_folder(config.model, Path(wanted).expanduser().absolute(), "--weights")
    folder = _trained(RunDirectory(config.run.output_dir / name)) if wanted == "auto" else None
    if folder is not None:
        return _of_folder(config.model, folder, "the run")
    locate_model(config.model.name)
    if config.model.adapter is not None:
        return _of_folder(config.model, config.model.adapter, "model.adapter")
    return DebugWeights(config.model, None)


def _trained(run: RunDirectory) -> Path | None:
    """Folder of the run's weights, if any; files at an unfinished run's root are from before a resume."""
    if run.result.is_file():
        return run.path
    latest = latest_checkpoint(run)
    return latest.path if latest is not None else None


def _of_folder(model: ModelConfig, folder: Path, told_by: str) -> DebugWeights:
    if (folder / "adapter_config.json").is_file():
        locate_model(model.name)
        return DebugWeights(model, folder)
    if (folder / "config.json").is_file():  # all weights were trained: the folder is the model
        whole = {"name": str(folder), "revision": None, "adapter": None, "added_tokens": ()}
        return DebugWeights(model.model_copy(update=whole), None)
    raise ModelError(
        f"{told_by}: {folder} has neither an adapter_config.json nor a config.json, so there is no model in it; "
        "name the folder of an adapter or of a checkpoint, or use --weights start"
    )
