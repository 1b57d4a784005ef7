"""The report of a pipeline: one page that needs no network, the same numbers as JSON, and a table in the terminal."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.base.console import console, new_table
from posttrain.base.files import atomic_write_text
from posttrain.base.text import counted
from posttrain.evaluate.report import evaluation_sections
from posttrain.evaluate.results import Results
from posttrain.inspect.folders import KeptRun, read_run
from posttrain.inspect.runs_report import cost, curves, ledgers, versions
from posttrain.pipeline.context import Context
from posttrain.pipeline.overlap import Overlaps
from posttrain.pipeline.plan import Planned
from posttrain.pipeline.process import shown
from posttrain.pipeline.records import Record, Records
from posttrain.pipeline.steps.choose import COLUMNS, WORDS, ChooseStep, choice, table_rows
from posttrain.pipeline.steps.decide import DecideStep, decision
from posttrain.pipeline.steps.eval import EvalStep
from posttrain.pipeline.steps.make_data import DataStep
from posttrain.pipeline.steps.training import TrainingStep
from posttrain.report.page import Block, Facts, Paragraph, Section, Table, Text, write_page

_TONES = {"taken": "good", "failed": "bad", "not run": "bad"}
_STEPS = ["step", "command", "result", "time", "steps", "tokens", "peak memory"]
_STEP_WORDS = frozenset({"command", "result"})


@dataclass(frozen=True)
class Outcome:
    """How a step ended: done, kept, skipped, failed, stopped or not run."""

    step: Planned
    state: str
    error: str = ""

    @property
    def has_results(self) -> bool:
        """Whether its folder holds what it should."""
        return self.state in ("done", "kept")


@dataclass(frozen=True)
class Finished:
    """A pipeline that has ended, with what its steps have left.

    Attributes:
        runs: of training, by step.
        evaluations: by step.
        decisions: by step.
        choices: of sweeps, by step.
    """

    context: Context
    outcomes: Sequence[Outcome]
    records: Mapping[str, Record | None]
    runs: Mapping[str, KeptRun]
    evaluations: Mapping[str, Results]
    decisions: Mapping[str, Mapping[str, Any]]
    choices: Mapping[str, Mapping[str, Any]]
    overlaps: Overlaps

    @classmethod
    def read(cls, context: Context, records: Records, outcomes: Sequence[Outcome], overlaps: Overlaps) -> "Finished":
        """Read the results of all steps that have some; RunError or ConfigError if one is damaged."""
        folders = {each.step.name: each.step.folder for each in outcomes if each.has_results}
        there = {name: folder for name, folder in folders.items() if folder is not None}
        steps = context.steps
        return cls(
            context,
            outcomes,
            {each.step.name: records.find(each.step.name, each.step.key) for each in outcomes},
            {name: read_run(folder) for name, folder in there.items() if isinstance(steps[name], TrainingStep)},
            {
                name: Results.read(folder / "results.json")
                for name, folder in there.items()
                if isinstance(steps[name], EvalStep)
            },
            {name: decision(folder) for name, folder in there.items() if isinstance(steps[name], DecideStep)},
            {name: choice(folder) for name, folder in there.items() if isinstance(steps[name], ChooseStep)},
            overlaps,
        )

    def rows(self) -> Iterator[list[str]]:
        """The steps as rows of a table."""
        for each in self.outcomes:
            run, record = self.runs.get(each.step.name), self.records[each.step.name]
            seconds = "" if record is None or not record.seconds else f"{record.seconds:,.0f} s"
            command = each.step.step.run  # type: ignore[attr-defined]
            yield [each.step.name, command, each.state, seconds, *cost(run.result if run else {})]

    def chats(self) -> Iterator[tuple[str, str]]:
        """The step whose model a decision took or kept, and the command that talks to it."""
        for each in self.decisions.values():
            model = self.context.model(each["winner"])
            yield each["winner"], shlex.join(["toolkit-chat", str(model.config), "--weights", model.weights])

    def as_json(self) -> dict[str, Any]:
        """What the page says, for programs."""
        steps = []
        for each in self.outcomes:
            record, run = self.records[each.step.name], self.runs.get(each.step.name)
            steps.append(
                {
                    "step": each.step.name,
                    "result": each.state,
                    "error": each.error or None,
                    "key": each.step.key,
                    "folder": each.step.folder and str(each.step.folder),
                    "seconds": record and record.seconds,
                    "digest": record and record.digest,
                    "starts_from": _starts_from(each.step, self.context),
                    "numbers": run and run.result,
                    "commands": _commands(each.step, self.context),
                }
            )
        return {
            "steps": steps,
            "decisions": dict(self.decisions),
            "choices": dict(self.choices),
            "overlaps": [asdict(each) for each in self.overlaps.found],
            "not looked through for overlaps": list(self.overlaps.unread),
            "evaluations": {name: each.as_json() for name, each in self.evaluations.items()},
        }


def write_report(context: Context, records: Records, outcomes: Sequence[Outcome], overlaps: Overlaps) -> None:
    """Write `report.html` and `report.json` into the pipeline's folder, and print what became of the steps.

    Raises:
        ConfigError, RunError: the results of a step are damaged.
    """
    found = Finished.read(context, records, outcomes, overlaps)
    atomic_write_text(context.folder / "report.json", json.dumps(found.as_json(), indent=2, ensure_ascii=False) + "\n")
    page = context.folder / "report.html"
    write_page(page, context.folder.name, list(_sections(found)))
    table = new_table("Results", *_STEPS, words=_STEP_WORDS)
    for row in found.rows():
        table.add_row(*row)
    console.print(table, soft_wrap=False)
    for name, each in found.choices.items():
        cells = new_table(name, *COLUMNS, words=WORDS)
        for row in table_rows(each):
            cells.add_row(*row)
        console.print(cells, soft_wrap=False)
    for each in [*found.choices.values(), *found.decisions.values()]:
        console.print(each["sentence"])
    console.print(f"report  {page}")
    for name, words in found.chats():
        console.print(f"talk to {name}  {words}")


def _sections(found: Finished) -> Iterator[Section]:
    decisions = [Paragraph(each["sentence"], _tone(each)) for each in found.decisions.values()]
    yield Section("Decision", [*decisions, *(Text(f"talk to {name}", words) for name, words in found.chats())])
    for name, each in found.choices.items():
        yield Section(
            f"{name}: settings", [Paragraph(each["sentence"]), Table(COLUMNS, list(table_rows(each)), words=WORDS)]
        )
    failures = [Paragraph(f"{each.step.name}: {each.error}", "bad") for each in found.outcomes if each.error]
    yield Section("Steps", [Table(_STEPS, list(found.rows()), words=_STEP_WORDS), *failures])
    yield Section("Which weights went where", list(_weights(found)))
    for name, results in found.evaluations.items():
        step = found.context.steps[name]
        left_out = step.left_out(found.context) if isinstance(step, EvalStep) else []
        for section in evaluation_sections(results, left_out):
            yield Section(f"{name}: {section.title}", section.blocks)
    yield from curves(found.runs)
    yield Section("Data", [*_kept_rows(found), *ledgers(found.runs), *_overlaps(found)])
    yield Section("Configs", [Text(name, text) for name, text in _configs(found)])
    yield Section("Commands", [Text("one after another", "\n".join(_all_commands(found)))])
    yield Section("Versions", list(versions(found.runs)))


def _kept_rows(found: Finished) -> Iterator[Text]:
    """What became of the prompts and answers of each `data` step."""
    for each in found.outcomes:
        if isinstance(each.step.step, DataStep) and each.has_results and each.step.folder is not None:
            yield Text(f"{each.step.name}: ledger", (each.step.folder / "ledger.json").read_text(encoding="utf-8"))


def _overlaps(found: Finished) -> Iterator[Block]:
    overlaps = found.overlaps.found
    if overlaps:
        count = len({each.held_out for each in overlaps})
        tone = "bad" if any(each.exact for each in overlaps) else ""
        yield Paragraph(
            f"{counted(count, 'held-out prompt')} share runs of words with prompts that are trained on.", tone
        )
        yield Text("overlaps", "\n".join(map(str, overlaps)))
    else:
        yield Paragraph(
            "No held-out prompt equals a prompt that is trained on, or has half of its runs of 13 words in one."
        )
    if found.overlaps.unread:
        yield Paragraph("These could not be looked through, so nothing is known of their prompts:")
        yield Text("not looked through", "\n".join(found.overlaps.unread))


def _tone(each: Mapping[str, Any]) -> str:
    return _TONES.get(each["outcome"], "")


def _weights(found: Finished) -> Iterator[Table | Facts]:
    rows = []
    for each in found.outcomes:
        for start in _starts_from(each.step, found.context):
            record = found.records.get(start["step"])
            rows.append(
                [each.step.name, start["step"], start["as"], record.digest[:12] if record and record.digest else ""]
            )
    if rows:
        words = frozenset({"uses the weights of", "as", "their digest"})
        yield Table(["step", "uses the weights of", "as", "their digest"], rows, words=words)


def _starts_from(planned: Planned, context: Context) -> list[dict[str, str]]:
    """The steps whose weights a step uses, and what of them."""
    step = planned.step
    if planned.state == "skipped":
        return []
    names = step.models_used(context)
    if isinstance(step, TrainingStep):
        names = [step.start.from_] if step.start is not None else []
    found = []
    for name in names:
        kind = "adapter" if context.model(name).adapter is not None else "all weights"
        found.append({"step": name, "as": kind})
    return found


def _configs(found: Finished) -> Iterator[tuple[str, str]]:
    """The config that each step ran with."""
    for each in found.outcomes:
        if each.step.job is not None and each.step.job.config is not None:
            yield each.step.name, each.step.job.config


def _commands(planned: Planned, context: Context) -> list[str]:
    if planned.folder is None or planned.state == "skipped":
        return []
    config = context.config_file(planned.folder)
    words = planned.step.commands(planned.folder, config, context, resume=False)
    return [shown(each, planned.step.launch) for each in words]


def _all_commands(found: Finished) -> list[str]:
    return [line for each in found.outcomes for line in _commands(each.step, found.context)]
