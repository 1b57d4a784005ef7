"""`toolkit-pipeline`: run the steps whose results are missing, each in a process of its own."""

import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.files import atomic_write_text, described_hash
from posttrain.base.locks import own_output, require_unowned
from posttrain.errors import ConfigError, RunError, RunInterrupted, ToolkitError
from posttrain.pipeline.config import PipelineConfig
from posttrain.pipeline.context import CONFIGS, Context
from posttrain.pipeline.expansion.unroll import unrolled
from posttrain.pipeline.overlap import Overlaps, Prompts, find_overlaps, require_none
from posttrain.pipeline.pipeline_report import Outcome, write_report
from posttrain.pipeline.plan import Planned, in_order, plan, planned, show, told
from posttrain.pipeline.process import call
from posttrain.pipeline.records import RECORDS, Made, Record, Records
from posttrain.pipeline.steps.base import StepConfig
from posttrain.pipeline.steps.choose import ChooseStep
from posttrain.pipeline.steps.eval import EvalStep


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
    """The steps of a config in their order.

    Raises:
        ConfigError: the command line names a step that is not there, or the folder is not this pipeline's.
    """
    folder = config.output_dir.absolute() / name
    if (folder / "manifest.json").exists():
        raise ConfigError(f"{folder} is the folder of a run; give the pipeline another name")
    every = in_order(config.all_steps())
    skipped = frozenset(_with_cells(wanted.skip, every))
    steps = unrolled(Context(every, folder, skipped))
    for option, names in (("--skip", wanted.skip), ("--rerun", wanted.rerun)):
        if unknown := [each for each in names if each not in steps]:
            raise ConfigError(f"{option}: there is no step {unknown[0]!r}, only {', '.join(steps)}")
    return Context(in_order(steps, wanted.until), folder, skipped, in_order(steps))


def _with_cells(names: Iterable[str], steps: Mapping[str, StepConfig]) -> Iterator[str]:
    """The steps, and what a sweep has made of one."""
    for name in names:
        yield name
        step = steps.get(name)
        if isinstance(step, ChooseStep):
            yield from (*step.cells, step.of)


def show_plan(config: PipelineConfig, name: str, wanted: Wanted) -> None:
    """`--dry-run`: check everything that the steps name, and print what each would do.

    Raises:
        ConfigError, DataError, ModelError: something is wrong.
    """
    context = open_context(config, name, wanted)
    require_unowned(context.folder)
    show(plan(context, Records(context.folder), wanted.rerun), context)
    check_overlaps(context, allowed=config.allow_overlap)
    console.print("nothing was run (--dry-run)")


def prune(config: PipelineConfig, name: str, wanted: Wanted) -> None:
    """`--prune`: remove the results of steps and configs that are not those of the config any more.

    Results of a step that waits for another one are kept, whatever they were made from. Raises as `show_plan`.
    """
    if wanted.until is not None or wanted.skip:
        raise ConfigError("--prune looks at the whole config; give it without --until and --skip")
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
        _remove_unfinished(context.folder)
        records = Records(context.folder)
        steps = plan(context, records, wanted.rerun)
        show(steps, context)
        run = _Run(context, records, wanted, allowed=config.allow_overlap)
        run.overlaps = check_overlaps(context, allowed=run.allowed)
        try:
            run.all_steps()
        finally:
            write_report(context, records, run.outcomes, run.overlaps)
    failed = [each for each in run.outcomes if each.state == "failed"]
    if failed:
        lines = [f"{each.step.name}: {each.error.splitlines()[0]}" for each in failed]
        raise RunError("\n  ".join([f"{len(failed)} of {len(run.outcomes)} steps failed:", *lines]))
    return run.outcomes


def _remove_unfinished(folder: Path) -> None:
    """Remove files that a killed pipeline had begun to write."""
    for place in (folder, folder / RECORDS, folder / CONFIGS):
        for unfinished in place.glob(".*.tmp"):
            unfinished.unlink()


class _Run:
    """The steps of a pipeline while they are run.

    Attributes:
        outcomes: of the steps so far.
        overlaps: of held-out and trained prompts, as far as these could be read so far.
    """

    def __init__(self, context: Context, records: Records, wanted: Wanted, *, allowed: bool) -> None:
        self.allowed = allowed
        self.outcomes: list[Outcome] = []
        self.overlaps = Overlaps()
        self._context, self._records, self._wanted = context, records, wanted
        self._missing: set[str] = set()
        chosen = [step for step in context.steps.values() if isinstance(step, ChooseStep)]
        self._optional = {cell for step in chosen for cell in step.cells}

    def all_steps(self) -> None:
        """Run what is to be run, in order."""
        for name, step in self._context.steps.items():
            if blocked := [needed for needed in step.needs if needed in self._missing]:
                self._missing.add(name)
                waiting = Planned(name, step, None, "waits", reasons=tuple(blocked))
                self.outcomes.append(Outcome(waiting, "not run", f"needs {', '.join(blocked)}"))
            elif not self._step(name, step) and self._wanted.stop_at_failure:
                return

    def _step(self, name: str, step: StepConfig) -> bool:
        """Run a step if that is necessary; whether its results are there.

        Raises:
            RunInterrupted: it was stopped.
        """
        current = Planned(name, step, None, "waits")
        try:
            current = planned(name, self._context, self._records, rerun=name in self._wanted.rerun)
            if current.state in ("kept", "skipped"):
                console.print(f"{name}: {current.state}")
                self.outcomes.append(Outcome(current, current.state))
                return True
            self._look_through_what_was_made(name)
            run_step(current, self._context, self._records)
            self.outcomes.append(Outcome(current, "done"))
            return True
        except RunInterrupted:
            self.outcomes.append(Outcome(current, "stopped"))
            raise
        except ToolkitError as error:
            self.outcomes.append(Outcome(current, "failed", str(error)))
            if name in self._optional:
                self._context.leave_out(name)
            else:
                self._missing.add(name)
            console.print(f"{name} failed: {error}")
            return False

    def _look_through_what_was_made(self, name: str) -> None:
        """Look for held-out prompts in the files that a step is about to train on, if they were not there before."""
        own = [place for place in self.overlaps.unread if place.startswith(f"{name}: ")]
        if own:
            new = check_overlaps(self._context, allowed=self.allowed, trained_by=[name])
            others = [place for place in self.overlaps.unread if place not in own]
            self.overlaps = Overlaps([*self.overlaps.found, *new.found], [*others, *new.unread])


def run_step(step: Planned, context: Context, records: Records) -> None:
    """Run a step and keep what it made.

    Raises:
        RunError: it failed.
        RunInterrupted: it was stopped.
    """
    folder, job = step.folder, step.job
    assert folder is not None and job is not None
    console.print(f"{step.name}: {told(step)}")
    if step.state == "runs" or not step.step.resumes:
        _clear(folder, records, step)
    if not step.step.resumes:
        folder.mkdir(parents=True)
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
        for command in step.step.commands(folder, config, context, resume=folder.is_dir()):
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


def check_overlaps(context: Context, *, allowed: bool, trained_by: Collection[str] | None = None) -> Overlaps:
    """What is held out by any step of the config and trained on by one that is run, or chosen by.

    Args:
        trained_by: look only at what these steps train on.

    Raises:
        DataError: a prompt is that must not be.
    """
    every = {name: step for name, step in context.all_steps.items() if name not in context.skipped}
    run = {name: step for name, step in every.items() if name in (trained_by or context.steps)}
    choosing = {step.of for step in every.values() if isinstance(step, ChooseStep)}
    evals = {name: step for name, step in every.items() if isinstance(step, EvalStep) and name not in choosing}

    def placed(steps: Mapping[str, StepConfig], *, trained: bool = False) -> Prompts:
        for name, step in steps.items():
            for place, text in step.trained(name, context) if trained else step.held_out(name, context):
                yield f"{name}: {place}", text

    found = find_overlaps(placed(every), placed(run, trained=True))
    if choosing and trained_by is None:
        chosen = find_overlaps(placed(evals), placed({name: every[name] for name in choosing}))
        found = Overlaps([*found.found, *chosen.found], [*found.unread, *chosen.unread])
    require_none(found.found, allowed=allowed)
    return found
