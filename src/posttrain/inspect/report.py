"""Sections about runs for reports: results, curves over each other, evaluations, ledgers and versions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.base.text import counted
from posttrain.inspect.folders import KeptRun
from posttrain.report.page import Block, Facts, Picture, Section, Table

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
    for name, run in reversed(runs.items()):
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
