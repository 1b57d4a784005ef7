"""`toolkit-pipeline`: run the steps whose results are missing, each in a process of its own."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.files import atomic_write_text
from posttrain.base.locks import own_output, require_unowned
from posttrain.base.text import first_line
from posttrain.data.tokenized import described_hash
from posttrain.errors import ConfigError, RunError, RunInterrupted, ToolkitError
from posttrain.pipeline.config import PipelineConfig
from posttrain.pipeline.context import Context
from posttrain.pipeline.overlap import Overlap, Prompts, find_overlaps, require_none
from posttrain.pipeline.pipeline_report import Outcome, write_report
from posttrain.pipeline.plan import Planned, in_order, plan, planned, show, told
from posttrain.pipeline.process import call
from posttrain.pipeline.records import Made, Record, Records
from posttrain.pipeline.steps.base import StepConfig
from posttrain.pipeline.steps.choose import ChooseStep
from posttrain.pipeline.steps.eval import EvalStep
from posttrain.pipeline.unroll import unrolled


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for.

    Attributes:
        until: the last step, with those that it needs; None for all.
        rerun: steps whose results are made again.
        skip: steps that do not run.
        stop_at_failure: start no other step once one has failed.
    """

    until: str | None = None
    rerun: Sequence[str] = ()
    skip: Sequence[str] = ()
    stop_at_failure: bool = False


def open_context(config: PipelineConfig, name: str, wanted: Wanted) -> Context:
    """The steps of a config in their order; ConfigError if the command line names one that is not there."""
    folder, skipped = config.output_dir.absolute() / name, frozenset(wanted.skip)
    steps = unrolled(Context(in_order(config.all_steps()), folder, skipped))
    for option, names in (("--skip", wanted.skip), ("--rerun", wanted.rerun)):
        if unknown := [each for each in names if each not in steps]:
            raise ConfigError(f"{option}: there is no step {unknown[0]!r}, only {', '.join(steps)}")
    return Context(in_order(steps, wanted.until), folder, skipped)


def show_plan(config: PipelineConfig, name: str, wanted: Wanted) -> None:
    """`--dry-run`: check everything that the steps name, and print what each would do.

    Raises:
        ConfigError, DataError, ModelError: something is wrong.
    """
    context = open_context(config, name, wanted)
    require_unowned(context.folder)
    show(plan(context, Records(context.folder), wanted.rerun), context)
    _require_no_overlap(context, allowed=config.allow_overlap)
    console.print("nothing was run (--dry-run)")


def prune(config: PipelineConfig, name: str, wanted: Wanted) -> None:
    """`--prune`: remove the results of steps and configs that are not those of the config any more.

    Results of a step that waits for another one are kept, whatever they were made from. Raises as `show_plan`.
    """
    context = open_context(config, name, wanted)
    with own_output(context.folder):
        records = Records(context.folder)
        steps = {each.name: each.key for each in plan(context, records) if each.state != "skipped"}
        for record in list(records):
            if steps.get(record.step, record.key) in (record.key, "") and record.step in context.steps:
                continue
            folder = context.folder / f"{record.step}-{record.key}"
            records.forget(record.step, record.key)
            for file in (context.config_file(folder), context.model_file(folder)):
                file.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            console.print(f"removed {folder}")


def run_pipeline(config: PipelineConfig, name: str, wanted: Wanted) -> list[Outcome]:
    """Run the steps, and write the report; a failed step leaves those that do not need it going.

    Raises:
        ConfigError, DataError, ModelError: something is wrong; nothing was run.
        RunError: some steps failed.
        RunInterrupted: Ctrl-C or SIGTERM ended it; the same command goes on.
    """
    context = open_context(config, name, wanted)
    with own_output(context.folder):
        records = Records(context.folder)
        steps = plan(context, records, wanted.rerun)
        show(steps, context)
        found = _require_no_overlap(context, allowed=config.allow_overlap)
        outcomes: list[Outcome] = []
        try:
            _run_all(context, records, wanted, outcomes)
        finally:
            write_report(context, records, outcomes, found)
    failed = [each for each in outcomes if each.state == "failed"]
    if failed:
        lines = [f"{each.step.name}: {each.error.splitlines()[0]}" for each in failed]
        raise RunError("\n  ".join([f"{len(failed)} of {len(outcomes)} steps failed:", *lines]))
    return outcomes


def _require_no_overlap(context: Context, *, allowed: bool) -> list[Overlap]:
    """What is held out and also trained on, or chosen by; DataError if a prompt is that must not be."""
    steps = {name: step for name, step in context.steps.items() if name not in context.skipped}
    choosing = {step.of for step in steps.values() if isinstance(step, ChooseStep)}
    evals = {name: step for name, step in steps.items() if isinstance(step, EvalStep) and name not in choosing}

    def placed(steps: Mapping[str, StepConfig], *, trained: bool = False) -> Prompts:
        for name, step in steps.items():
            for place, text in step.trained(name, context) if trained else step.held_out(name, context):
                yield f"{name}: {place}", text

    found = find_overlaps(placed(steps), placed(steps, trained=True))
    if choosing:
        found += find_overlaps(placed(evals), placed({name: steps[name] for name in choosing}))
    require_none(found, allowed=allowed)
    return found


def _run_all(context: Context, records: Records, wanted: Wanted, outcomes: list[Outcome]) -> None:
    missing: set[str] = set()
    optional = {cell for step in context.steps.values() if isinstance(step, ChooseStep) for cell in step.cells}
    for name, step in context.steps.items():
        if blocked := [needed for needed in step.needs if needed in missing]:
            missing.add(name)
            waiting = Planned(name, step, None, "waits", reasons=tuple(blocked))
            outcomes.append(Outcome(waiting, "not run", f"needs {', '.join(blocked)}"))
            continue
        current = planned(name, context, records, rerun=name in wanted.rerun)
        if current.state in ("kept", "skipped"):
            console.print(f"{name}: {current.state}")
            outcomes.append(Outcome(current, current.state))
            continue
        try:
            _run(current, context, records)
            outcomes.append(Outcome(current, "done"))
        except ToolkitError as error:
            if isinstance(error, RunInterrupted):
                outcomes.append(Outcome(current, "stopped"))
                raise
            outcomes.append(Outcome(current, "failed", str(error)))
            if name in optional:
                context.leave_out(name)
            else:
                missing.add(name)
            console.print(f"{name} failed: {first_line(error)}")
            if wanted.stop_at_failure:
                return


def _run(step: Planned, context: Context, records: Records) -> None:
    """Run a step and keep what it made.

    Raises:
        RunError: it failed.
        RunInterrupted: it was stopped.
    """
    folder, job = step.folder, step.job
    assert folder is not None and job is not None
    console.print(f"{step.name}: {told(step)}")
    if step.state == "runs":
        _clear(folder, records, step)
    before = step.record or Record(step.name, step.key, step.parts, time.time())
    records.write(replace(before, error=""))
    config = context.config_file(folder)
    config.parent.mkdir(parents=True, exist_ok=True)
    if job.config is not None:
        atomic_write_text(config, job.config)
    for name in step.step.models_used(context):
        context.write_model(name)
    began = time.monotonic()
    try:
        resume = (folder / "manifest.json").is_file()
        for command in step.step.commands(folder, config, context, resume=resume):
            call(command, step.step.launch)
        step.step.make(folder, context)
        made = _made(step, folder)
    except ToolkitError as error:
        seconds = before.seconds + time.monotonic() - began
        records.write(replace(before, seconds=seconds, error=str(error)))
        raise
    own = step.step.digest(folder, context)
    digest = own if own is not None else digest_of(made)
    seconds = before.seconds + time.monotonic() - began
    records.write(replace(before, seconds=seconds, made=made, digest=digest, error=""))
    context.place(step.name, folder, digest)


def _clear(folder: Path, records: Records, step: Planned) -> None:
    """Remove what an attempt with the same key has left, which is made again."""
    records.forget(step.name, step.key)
    if folder.exists():
        shutil.rmtree(folder)


def _made(step: Planned, folder: Path) -> tuple[Made, ...]:
    """What a step made; RunError if a file is missing."""
    paths = step.step.outputs(folder)
    if missing := [path for path in paths if not path.is_file()]:
        raise RunError(f"{step.name} has not made {missing[0]}")
    if not paths:
        raise RunError(f"{step.name} has made nothing in {folder}")
    return tuple(Made.of(path, folder) for path in paths)


def digest_of(made: Sequence[Made]) -> str:
    """Hash of the names and contents of what a step made."""
    return described_hash({each.path: each.digest for each in made})
