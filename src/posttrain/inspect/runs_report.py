"""Reports of runs: results, curves over each other, evaluations, answers, ledgers and versions."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.base.outputs import check_output
from posttrain.base.text import counted
from posttrain.errors import ConfigError
from posttrain.inspect.folders import KeptRun, read_run
from posttrain.inspect.listing import COLUMNS, list_runs, run_folders
from posttrain.report.page import Block, Comparison, Facts, Picture, Section, Table, write_page

_CURVES: dict[str, dict[str, tuple[str, ...]]] = {
    "sft": {
        "loss per trained token (nats)": ("loss", "eval_loss"),
        "held-out reward": ("", "eval_reward"),
    },
    "dpo": {
        "loss per pair": ("loss", "eval_loss"),
        "reward margin": ("reward_margin", "eval_reward_margin"),
        "held-out reward": ("", "eval_reward"),
    },
    "rl": {
        "mean reward": ("reward", "eval_reward"),
        "completion length (tokens)": ("completion_tokens", "eval_tokens"),
        "KL divergence from the start (nats)": ("kl",),
    },
}
_KIND_NAMES = {"sft": "SFT", "dpo": "DPO", "rl": "Reinforcement learning"}


_WATCH_SECONDS = 5
_ANSWERS = 5
"""How many prompts of each run are shown with their answers."""


def write_report(folder: Path, output: Path, refresh_seconds: int | None = None) -> None:
    """Write a page about all runs in a folder, or about the run that it is.

    Args:
        refresh_seconds: a browser that shows the page loads it again that often; None never.

    Raises:
        ConfigError: there is no such folder, it has no runs, or the output cannot be written.
    """
    check_output(output, [], overwrite=True)
    summaries = list_runs(folder)
    if not summaries:
        raise ConfigError(f"there are no runs in {folder}")
    runs = _readable(folder)
    words = frozenset(COLUMNS[1:6])
    sections = [
        Section("Runs", [Table(COLUMNS, [each.cells() for each in summaries], words=words)]),
        *curves(runs),
        Section("Evaluations", list(evaluations(runs))),
        *answers(runs),
        Section("Data", list(ledgers(runs))),
        Section("Versions", list(versions(runs))),
    ]
    write_page(output, folder.absolute().name, sections, refresh_seconds=refresh_seconds)


def watch_report(folder: Path, output: Path, tell: Callable[[str], None]) -> None:
    """Write the page again whenever a run in the folder goes on, until Ctrl-C; errors as `write_report`."""
    seen: list[int] | None = None
    while True:
        if (now := _progress(folder)) != seen:
            write_report(folder, output, _WATCH_SECONDS)
            tell(f"wrote {output}")
            seen = now
        time.sleep(_WATCH_SECONDS)


def _progress(folder: Path) -> list[int]:
    files = (path / name for _, path in run_folders(folder) for name in ("metrics.jsonl", "result.json"))
    return [file.stat().st_size if file.is_file() else -1 for file in files]


def _readable(folder: Path) -> dict[str, KeptRun]:
    """The runs that have begun and are not damaged; what others are is in the list."""
    found = {}
    for name, path in run_folders(folder):
        try:
            run = read_run(path)
            if run.kind in _CURVES:
                found[name] = run
        except ConfigError:
            continue
    return found


def answers(runs: Mapping[str, KeptRun]) -> Iterator[Section]:
    """A few held-out prompts of each run, with the answers of its first and its last evaluation."""
    for name, run in runs.items():
        files = sorted((run.directory.path / "evaluations").glob("step-*.jsonl"))
        kept = {
            f"step {int(file.stem.removeprefix('step-'))}": _first_answers(file)
            for file in (*files[:1], *files[1:][-1:])
        }
        if kept:
            prompts = next(iter(kept.values()))
            sides = [
                Comparison(
                    first["prompt"],
                    "",
                    {step: _answer(by_prompt[prompt]) for step, by_prompt in kept.items() if prompt in by_prompt},
                )
                for prompt, first in prompts.items()
            ]
            yield Section(f"{name}: answers", sides)


def _first_answers(file: Path) -> dict[str, dict[str, Any]]:
    """The first answer to each of the first prompts, by the prompts' names."""
    found: dict[str, dict[str, Any]] = {}
    with file.open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if len(found) == _ANSWERS and line["sample_id"] not in found:
                break
            found.setdefault(line["sample_id"], line)
    return found


def _answer(line: Mapping[str, Any]) -> tuple[str, str]:
    return line["completion"], "no grade" if line["reward"] is None else f"{line['reward']:.2f}"


def curves(runs: Mapping[str, KeptRun]) -> Iterator[Section]:
    """A section for each kind of run, with the curves of its runs over each other."""
    from posttrain.runs.plots import overlaid  # heavy: matplotlib

    for kind, pictures in _CURVES.items():
        rows = {name: run.rows for name, run in runs.items() if run.kind == kind}
        drawn = {label: overlaid(rows, label, keys) for label, keys in pictures.items()}
        yield Section(
            f"{_KIND_NAMES[kind]}: curves", [Picture(label, svg) for label, svg in drawn.items() if svg is not None]
        )


def ledgers(runs: Mapping[str, KeptRun]) -> Iterator[Table]:
    """What became of every row of each run's data sets."""
    rows = []
    for name, run in runs.items():
        for each in run.ledgers:
            dropped = sum(each["dropped"].values())
            counts = (each["records"], each["bad"], dropped, each["cut_left"] + each["cut_right"], each["rows"])
            rows.append([name, each["name"], *(f"{count:,}" for count in counts), f"{each['trained_tokens']:,}"])
    if rows:
        columns = ["run", "data set", "records", "bad", "dropped", "cut", "rows", "trained tokens"]
        yield Table(columns, rows, "What became of every row", frozenset({"data set"}))


def versions(runs: Mapping[str, KeptRun]) -> Iterator[Facts]:
    """The packages and machine of the newest run, and of others where they differ."""
    seen: list[dict[str, str]] = []
    for name, run in sorted(runs.items(), key=lambda each: each[1].directory.manifest.stat().st_mtime, reverse=True):
        found = _surroundings(run.manifest)
        if found not in seen:
            seen.append(found)
            yield Facts(found, name)


def _surroundings(manifest: Mapping[str, Any]) -> dict[str, str]:
    packages = {name: str(version) for name, version in manifest.get("packages", {}).items() if version}
    names = ("python", "system", "processor", "cpus", "accelerators", "commit")
    return {**packages, **{name: _told(manifest[name]) for name in names if manifest.get(name)}}


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def cost(result: Mapping[str, Any]) -> Sequence[str]:
    """Optimizer steps, tokens and peak memory of a finished run; blanks if it is none."""
    if "steps" not in result:
        return ["", "", ""]
    return [f"{result['steps']:,}", f"{result['tokens']:,}", f"{result['peak_memory_gib']:.1f} GiB"]


def evaluations(runs: Mapping[str, KeptRun]) -> Iterator[Block]:
    """The held-out values of each run by optimizer step."""
    for name, run in runs.items():
        rows = [row for row in run.rows if any(key.startswith("eval_") for key in row)]
        keys = list(dict.fromkeys(key for row in rows for key in row if key.startswith("eval_")))
        keys = [key for key in keys if all(isinstance(row.get(key, 0.0), int | float) for row in rows)]
        if rows and keys:
            shown = [[str(row["step"]), *(_number(row.get(key)) for key in keys)] for row in rows]
            columns = ["step", *(key.removeprefix("eval_").replace("_", " ") for key in keys)]
            yield Table(columns, shown, f"{name}: {counted(len(rows), 'evaluation')}")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""
