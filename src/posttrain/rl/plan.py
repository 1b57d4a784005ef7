"""`toolkit-rl-train --dry-run`: check everything that needs no weights, and print the plan."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from posttrain.base.console import console, new_table
from posttrain.base.extras import require_extra
from posttrain.base.text import counted
from posttrain.dataserver.schemas import DatasetMeta, Meta
from posttrain.errors import ConfigError
from posttrain.models.adapters.fit import require_adapter_fits
from posttrain.models.location import locate_model
from posttrain.rl.config import DataserverSection, RLConfig, RolloutConfig
from posttrain.rl.presets import PRESETS, resolve_objective
from posttrain.rl.rollout.engines.config import check_own_engine
from posttrain.rl.rollout.engines.plan import show_lacks, told_sampling
from posttrain.rl.rollout.filters.catalogue import check_user_filters
from posttrain.rl.schedule import RolloutSchedule, held_out_count, require_fit
from posttrain.runs.directory import RunDirectory, check_run_directory
from posttrain.runs.finish import finished_result
from posttrain.train.optim.schedules import schedule_in_words
from posttrain.train.plan import pieces_in_words, require_batching, show_estimate, show_experts

if TYPE_CHECKING:
    from posttrain.rl.client.connection import Connection
    from posttrain.rl.rollout.rollout import SampleSource
    from posttrain.rl.rollout.store.recording import Recording
    from posttrain.train.cost.estimate import Estimate


def show_plan(
    config: RLConfig, name: str, *, resume: bool = False, overwrite: bool = False, rollouts_from: Path | None = None
) -> None:
    """Check the config against model, step and dataserver, and print what would be trained; nothing is written.

    A dataserver that the config would start is started, queried and stopped. If one given by its URL does not answer,
    the plan says so in one line.

    Raises:
        ConfigError, DataError, ModelError, ServerError: as the run itself would.
    """
    schedule = RolloutSchedule.of(config)
    model = f"{config.model.name} ({locate_model(config.model.name).kind}), {_trained(config)}"
    run = RunDirectory(config.run.output_dir / name)
    recording = _recording(rollouts_from, run)
    preset = PRESETS[config.algorithm]
    if find_spec("torch") is not None:
        from posttrain.rl.objective import check_user_functions

        check_user_functions(resolve_objective(config.algorithm, config.objective))
        check_user_filters(config.rollout.filters)  # may import torch as well
        check_own_engine(config.rollout.engine)
    if find_spec("transformers") is not None:
        require_batching(config.training, config.model, config.rollout.max_prompt_tokens + config.rollout.longest)
    console.print(f"algorithm       {config.algorithm}, {preset.paper}{f': {preset.note}' if preset.note else ''}")
    console.print(objective_table(config), soft_wrap=False)
    console.print("\n".join(_schedule_lines(config, schedule)))
    console.print(generation_table(schedule), soft_wrap=False)
    console.print(f"model           {model}")
    if rollouts_from is None or config.evaluation is not None:
        console.print(f"sampling        {told_sampling(config)}")
    if rollouts_from is not None:
        console.print(f"rollouts        recorded in {rollouts_from}")
    if config.rollout.filters:
        console.print(f"filters         {_filtering(config.rollout)}")
    if config.rollout.replay is not None:
        console.print(f"replay          {config.rollout.replay.told}")
    if config.rollout.successes is not None:
        console.print(f"successes       {config.rollout.successes.told}")
    _show_dataserver(config, schedule, run, resume, recording)
    if find_spec("transformers") is not None:
        show_experts(config)
        show_estimate(config, lambda: estimated(config))
        if rollouts_from is None or config.evaluation is not None:
            show_lacks(config, run)
    console.print(f"run directory   {run.path}")
    # Checked last: the plan is worth reading even if the run has ended.
    check_run_directory(run, resume=resume, overwrite=overwrite)
    console.print("nothing was trained (--dry-run)")


def _schedule_lines(config: RLConfig, schedule: RolloutSchedule) -> list[str]:
    served = schedule.iteration_stride
    passes = f", in {schedule.passes} passes" if schedule.passes > 1 else ""
    return [
        f"optimizer step  {schedule.rows_per_step} completions, the groups of {schedule.prompts_per_step} prompts: "
        f"{pieces_in_words(config.training)}",
        f"generation      {schedule.prompts_per_iteration * schedule.generations} completions, {schedule.generations} "
        f"for each of {schedule.prompts_per_iteration} prompts, serve {served} optimizer "
        f"step{'s' * (served > 1)}{passes}",
        f"dataserver      needs prompts_per_iteration: {schedule.prompts_per_iteration} and "
        f"iteration_stride: {schedule.iteration_stride}",
    ]


def _filtering(rollout: RolloutConfig) -> str:
    what = {
        "keep": "counted, and trained all the same",
        "drop": "left out",
        "substitute": f"replaced by another row of its data set, in at most {counted(rollout.attempts, 'attempt')}",
    }
    spares = f"; {rollout.over_sampling - 1:.0%} spare groups" if rollout.over_sampling > 1 else ""
    return f"{', '.join(each.name for each in rollout.filters)}: a rejected group is {what[rollout.rejected]}{spares}"


def _recording(rollouts_from: Path | None, run: RunDirectory) -> "Recording | None":
    if rollouts_from is None:
        return None
    require_extra("train", "--rollouts-from")
    from posttrain.rl.rollout.store.recording import open_recording

    return open_recording(rollouts_from, run)


def _show_dataserver(
    config: RLConfig, schedule: RolloutSchedule, run: RunDirectory, resume: bool, recording: "Recording | None"
) -> None:
    section = config.dataserver
    missing = _missing_for(section)
    if missing is not None:
        console.print(f"the dataserver's curriculum was not checked: {missing}")
        return
    # These need packages that the base install lacks.
    from posttrain.rl.client.connection import temporary_connection
    from posttrain.rl.client.transport import OutageError

    # A server that the config does not start is asked once, without waiting for it.
    patience = 0.0 if section.url is not None else None
    try:
        with temporary_connection(section, retry_seconds=patience) as connection:
            max_steps = require_fit(config, schedule, connection.meta)
            console.print("\n".join(_run_lines(config, connection.meta, max_steps)))
            console.print(stage_table(connection.meta, max_steps), soft_wrap=False)
            if find_spec("transformers") is not None:
                if recording is None:
                    _show_prompts(config, schedule, connection.client)
                else:
                    _show_recorded(config, schedule, recording, max_steps)
                if resume:
                    _show_resume(config, schedule, replace(connection, recording=recording), run, max_steps)
    except OutageError:
        if section.url is None:
            raise
        console.print(f"no dataserver answers at {section.url} yet, so its curriculum was not checked")


def _missing_for(section: DataserverSection) -> str | None:
    """Which packages for querying the dataserver are missing; the plan may be made on another machine than the run."""
    try:
        if section.config is not None:
            require_extra("server", "a dataserver started by the trainer")
    except ConfigError as error:
        return str(error)
    missing = [module for module in ("httpx", "tenacity") if find_spec(module) is None]
    return f"not installed here: {', '.join(missing)}" if missing else None


def _run_lines(config: RLConfig, meta: Meta, max_steps: int) -> list[str]:
    evaluation = config.evaluation
    held_out = sum(dataset.validation_rows for dataset in meta.datasets)
    evaluated = f"{held_out} held-out prompts are unused: the config has no evaluation section"
    if evaluation is not None:
        asked = held_out_count(meta, evaluation)
        evaluated = (
            f"{asked} of {held_out} held-out prompts, {evaluation.samples} "
            f"completion{'s' * (evaluation.samples > 1)} each, every {evaluation.every} steps"
            f"{' and at the start' * evaluation.at_start}"
        )
    rows = ", ".join(_rows_of(dataset) for dataset in meta.datasets)
    return [
        f"steps           {schedule_in_words(config.training, max_steps)}",
        f"rows            {rows}{'; adaptive sampling' * meta.adaptive} (config_id {meta.config_id})",
        f"evaluation      {evaluated}",
    ]


def _rows_of(dataset: DatasetMeta) -> str:
    left_out = f" ({dataset.too_long_rows:,} too long)" if dataset.too_long_rows else ""
    return f"{dataset.name} {dataset.rows:,}{left_out}"


def _show_prompts(config: RLConfig, schedule: RolloutSchedule, samples: "SampleSource") -> None:
    """Render the first prompts as the run would, and print how long they are."""
    from posttrain.inference.load import load_text
    from posttrain.rl.rollout.rollout import PromptSource

    rollout, text = config.rollout, load_text(config.model, config.chat)
    prompts = PromptSource(samples, text.encoder, schedule, rollout.max_prompt_tokens).of_generation(0)
    lengths, longer = [len(prompt.ids) for prompt in prompts], sum(prompt.is_too_long for prompt in prompts)
    told = f"the first {len(prompts)} have {min(lengths)} to {max(lengths)} tokens"
    if longer:
        told += (
            f"; {longer} of them are longer than rollout.max_prompt_tokens {rollout.max_prompt_tokens} and would be "
            "skipped (toolkit-rl-debug shows prompt lengths)"
        )
    console.print(f"prompts         {told}")
    _check_length(config, text.positions)


def _show_recorded(config: RLConfig, schedule: RolloutSchedule, recording: "Recording", max_steps: int) -> None:
    """Check the recorded generations as the run would."""
    from posttrain.data.preparation import tokenizer_digest
    from posttrain.rl.rollout.store.recorded_rollouts import require_recording_fits

    require_recording_fits(recording, config, schedule, max_steps, tokenizer_digest(_tokenizer(config)))
    console.print(f"generations     all {schedule.generations_until(max_steps)} are recorded, and they fit")


def _tokenizer(config: RLConfig) -> Any:
    from posttrain.models.load import choose_backend

    return choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")


def _check_length(config: RLConfig, positions: int | None) -> None:
    """Warn if prompts and completions can exceed the model's context; ConfigError if the engine would not start."""
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + config.longest_completion
    if positions is None or longest <= positions:
        return
    told = f"rollout.max_prompt_tokens + max_new_tokens = {longest} exceeds the model's context of {positions} tokens"
    if rollout.traits.refuses_long:
        raise ConfigError(f"{told}, which {rollout.traits.title} rejects; lower one of the two")
    console.print(f"{told}: longer sequences produce garbage; lower one of the two")


def estimated(config: RLConfig) -> "Estimate":
    """Memory for training on prompts and completions of maximum length; no time, since their lengths are unknown."""
    from posttrain.models.model_shape import TrainedModel
    from posttrain.train.cost.batches import Batch
    from posttrain.train.cost.estimate import Work, estimate

    rows, rollout = config.training.micro_batch_size, config.rollout
    width = rollout.max_prompt_tokens + rollout.longest
    if config.training.micro_batch_tokens is not None:
        rows = max(1, config.training.micro_batch_tokens // width)
    longest = Batch(rows, width, rows * rollout.longest)
    steps = config.training.max_steps or 1
    return estimate(TrainedModel.of(config, steps), Work([[[longest]]], steps), timed=False)


def _show_resume(
    config: RLConfig, schedule: RolloutSchedule, connection: "Connection", run: RunDirectory, max_steps: int
) -> None:
    from posttrain.rl.train import find_resume_point, run_identity

    identity = run_identity(config, connection.meta, _tokenizer(config), connection.recording)
    point = find_resume_point(run, identity, schedule, resume=True)
    if finished_result(run, max_steps):
        console.print(f"{run.path} is finished: nothing is left to resume")
    elif point.checkpoint is not None:
        console.print(f"{run.path} would continue from step {point.counters.step}")


def _trained(config: RLConfig) -> str:
    adapter = config.model.adapter
    if adapter is not None:
        require_adapter_fits(adapter, config.model)
        return f"continuing from the adapter {adapter}"
    if config.lora is None:
        return "all weights trained"
    return f"LoRA r={config.lora.r} on {config.lora.target_modules}"


_SHOWN_GENERATIONS = 4


def objective_table(config: RLConfig) -> Table:
    """Every field of the objective, and where the config replaces the preset's value."""
    table = new_table("Objective", "field", "value", "", words=("value", ""))
    preset = vars(PRESETS[config.algorithm].objective)
    given = {name for name, value in config.objective.model_dump().items() if value is not None}
    for name, value in vars(resolve_objective(config.algorithm, config.objective)).items():
        origin = ""
        if name in given:
            origin = f"set in objective; {config.algorithm} has {_worded(preset[name])}"
        elif value != preset[name]:
            origin = f"follows epsilon; {config.algorithm} has {_worded(preset[name])}"
        table.add_row(name, _worded(value), origin)
    return table


def generation_table(schedule: RolloutSchedule) -> Table:
    """The first generations: when each is made, and the steps that it serves."""
    columns = ("generation", "made at step", "serves steps", "asks iteration")
    table = new_table("The first generations", *columns)
    for generation in range(_SHOWN_GENERATIONS):
        iteration = schedule.iteration_of(generation)
        served = _span(iteration + 1, iteration + schedule.iteration_stride)
        table.add_row(str(generation + 1), str(iteration + 1), served, str(iteration))
    return table


def stage_table(meta: Meta, max_steps: int) -> Table:
    """The dataserver's curriculum: each stage's steps, and the share and the reward of each data set in it."""
    table = new_table("Curriculum", "stage", "steps", "data set", "share", "reward", words=("data set", "reward"))
    for stage in meta.stages:
        steps = _span(stage.from_iteration + 1, stage.until_iteration)
        mixed = [(name, share) for name, share in stage.mix.items() if share]
        for first, (dataset, share) in enumerate(mixed):
            head = ("", "") if first else (stage.name, steps)
            for number, (label, reward) in enumerate(stage.rewards(dataset)):
                table.add_row(*(("", "") if number else head), label, "" if number else f"{share:.1%}", reward)
    if max_steps < meta.total_iterations:
        table.caption = f"training.max_steps stops at step {max_steps}"
    elif max_steps > meta.total_iterations:
        table.caption = f"training.max_steps continues the last stage's mix until step {max_steps}"
    return table


def _worded(value: object) -> str:
    """A value as written in a config."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"
