"""What each step of a pipeline has to do: nothing, go on, or run, and why."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Literal

from posttrain.base.console import console, new_table
from posttrain.errors import ConfigError
from posttrain.pipeline.context import Context
from posttrain.pipeline.records import Parts, Record, Records, key_of
from posttrain.pipeline.steps.base import Job, StepConfig
from posttrain.runs.manifest import changed_values

State = Literal["kept", "goes on", "runs", "waits", "skipped"]
# Their values are hashes, of which only the key says something.
_HASHED = ("files.", "inputs.", "prompts", "environment.", "weights")
_SHOWN_REASONS = 3


@dataclass(frozen=True)
class Planned:
    """A step and what it has to do.

    Attributes:
        folder: where its results are or will be; None while it waits.
        reasons: why it runs, or what it waits for.
        record: of the attempt whose results are kept or which goes on.
    """

    name: str
    step: StepConfig
    job: Job | None
    state: State
    parts: Parts = field(default_factory=dict)
    folder: Path | None = None
    reasons: tuple[str, ...] = ()
    record: Record | None = None

    @property
    def key(self) -> str:
        """The key of its results; empty while it waits."""
        return key_of(self.parts) if self.parts else ""


def in_order(steps: Mapping[str, StepConfig], until: str | None = None) -> dict[str, StepConfig]:
    """The steps so that each comes after those that it needs; with `until`, only that one and what it needs.

    Raises:
        ConfigError: there is no step `until`.
    """
    if until is not None and until not in steps:
        raise ConfigError(f"--until: there is no step {until!r}, only {', '.join(steps)}")
    wanted = set(steps) if until is None else _needed(until, steps)
    sorter = TopologicalSorter({name: step.needs for name, step in steps.items() if name in wanted})
    return {name: steps[name] for name in sorter.static_order()}


def _needed(name: str, steps: Mapping[str, StepConfig]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += steps[each].needs
    return found


def plan(context: Context, records: Records, rerun: Collection[str] = ()) -> list[Planned]:
    """What all steps have to do, in order; nothing is changed on disk.

    Args:
        rerun: steps that run again whatever is kept of them.

    Raises:
        ConfigError, DataError, ModelError: a step's config or data are wrong, or a file that was made has changed.
    """
    return [planned(name, context, records, rerun=name in rerun) for name in context.steps]


def planned(name: str, context: Context, records: Records, *, rerun: bool = False) -> Planned:
    """What a step has to do, once those that it needs have been planned; errors as `plan`."""
    step = context.steps[name]
    if name in context.skipped:
        return Planned(name, step, None, "skipped")
    job = step.job(name, context)
    digests = {needed: context.digest(needed) for needed in step.needs}
    if missing := [needed for needed, digest in digests.items() if digest is None]:
        return Planned(name, step, job, "waits", reasons=tuple(missing))
    parts = {**job.key, "launch": list(step.launch), "inputs": digests}
    key = key_of(parts)
    folder, record = context.folder / f"{name}-{key}", records.find(name, key)
    is_kept = record is not None and record.digest is not None and not rerun
    if record is not None and is_kept:
        record.require_unchanged(folder)
        if gone := [path for path in step.further_files(folder) if not path.is_file()]:
            raise ConfigError(f"{gone[0]} is gone: restore it, or make the results of {name} again with --rerun {name}")
    context.place(name, folder, record.digest if record is not None and is_kept else None)
    if is_kept:
        return Planned(name, step, job, "kept", parts, folder, record=record)
    if record is not None and folder.exists() and not rerun:
        return Planned(name, step, job, "goes on", parts, folder, (record.error,) if record.error else (), record)
    before = records.last(name)
    reasons = ("--rerun",) if rerun else () if before is None else tuple(changes(before.parts, parts))
    return Planned(name, step, job, "runs", parts, folder, reasons)


def changes(before: Parts, now: Parts) -> Iterator[str]:
    """What makes the results of a step differ from those of an earlier attempt, a line each."""
    for key, old, new in changed_values(before, now):
        if key.startswith("inputs."):
            yield f"{key.removeprefix('inputs.')} made something else"
        elif key == "weights" or any(part in key for part in _HASHED):
            yield f"{key.removeprefix('files.').removesuffix('.path')} changed"
        else:
            yield f"{key.removeprefix('config.')}: {_shown(old)} → {_shown(new)}"


def _shown(value: object) -> object:
    return "absent" if value is None else value


def show(steps: Iterable[Planned], context: Context) -> None:
    """Print the plan as a table."""
    table = new_table("Steps", "step", "from", "key", "what it does", words=("from", "key", "what it does"))
    for each in steps:
        table.add_row(each.name, ", ".join(each.step.needs), each.key, told(each))
    console.print(table, soft_wrap=False)
    console.print(f"folder  {context.folder}")


def told(each: Planned) -> str:
    """What a step has to do, in words."""
    if each.state == "waits":
        return f"waits for {', '.join(each.reasons)}"
    more = len(each.reasons) - _SHOWN_REASONS
    reasons = [*each.reasons[:_SHOWN_REASONS], *([f"and {more} more changes"] if more > 0 else [])]
    return f"{each.state}{': ' if reasons else ''}{'; '.join(reasons)}"
