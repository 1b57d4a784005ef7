"""The end of a run: the model at its root, pictures, and what training changed."""

from typing import Any

from rich import box
from rich.table import Table

from toolkit.core.runs.checkpoints import latest_checkpoint
from toolkit.core.runs.directory import RunDirectory
from toolkit.core.runs.export import export_checkpoint
from toolkit.core.runs.finish import exported_checkpoint
from toolkit.core.runs.metrics import read_metrics
from toolkit.core.runs.peak_memory import peak_memory_bytes
from toolkit.core.runs.progress import console
from toolkit.errors import RunError
from toolkit.rl.config.rl import RLConfig
from toolkit.rl.evaluation import EVALUATIONS, Difference, evaluation_file, paired_difference


def finish(run: RunDirectory, config: RLConfig, max_steps: int) -> dict[str, Any]:
    """Export the last or the best checkpoint, draw the plots, print the table, and write and return `result.json`."""
    from toolkit.core.runs.plots import plot_run  # heavy: matplotlib
    from toolkit.rl.plots import PICTURES

    last = latest_checkpoint(run)
    if last is None:
        raise RunError(f"no complete checkpoint was written to {run.path}")
    rows = read_metrics(run.metrics)
    chosen = exported_checkpoint(run, config.run.export, last, is_measured=any("eval_reward" in row for row in rows))
    export_checkpoint(run, chosen)
    plot_run(rows, run.plots, PICTURES)
    counters = last.state["counters"]
    changes = reward_changes(run, rows)
    result = {
        "directory": str(run.path),
        "steps": last.step,
        "max_steps": max_steps,
        "exported": chosen.name,
        "completions": counters["rows"],
        "tokens": counters["tokens"],
        "seconds": round(counters["seconds"], 1),
        "reward": next((row["reward"] for row in reversed(rows) if row.get("reward") is not None), None),
        "held_out": {name: vars(change) for name, change in changes.items()},
        "peak_memory_gib": round(peak_memory_bytes() / 2**30, 2),
    }
    run.write_json(run.result, result)
    if changes:
        console.print(change_table(changes), soft_wrap=False)
    console.print(
        f"{last.step} steps, {result['completions']:,} completions, {result['tokens']:,} tokens in "
        f"{result['seconds']:.0f} s, peak memory {result['peak_memory_gib']:.1f} GiB\n"
        f"{chosen.name} is exported to {run.path}; plots are in its folder plots, completions in completions.jsonl"
    )
    return result


def reward_changes(run: RunDirectory, rows: list[dict[str, Any]]) -> dict[str, Difference]:
    """The reward and each grader's score at the first and the last evaluation; empty where there are not two."""
    evaluated = [row for row in rows if "eval_reward" in row]
    folder = run.path / EVALUATIONS
    files = [file for row in evaluated if (file := evaluation_file(folder, row["step"])).is_file()]
    if len(files) < 2:
        return {}
    graders = [key.removeprefix("eval_graders/") for key in evaluated[0] if key.startswith("eval_graders/")]
    compared = {name: paired_difference(files[0], files[-1], name) for name in ["reward", *graders]}
    return {name: difference for name, difference in compared.items() if difference is not None}


def change_table(changes: dict[str, Difference]) -> Table:
    """Before, after, and how sure the difference is."""
    prompts = next(iter(changes.values())).prompts
    table = Table(
        title=f"{prompts} held-out prompts, first evaluation against last",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
    )
    for column in ("", "before", "after", "difference, 95 % interval"):
        table.add_column(column, justify="right" if column else "left")
    for name, change in changes.items():
        difference = f"{change.mean:+.3f} ± {change.margin:.3f}"
        table.add_row(name, f"{change.before:.3f}", f"{change.after:.3f}", difference)
    return table
