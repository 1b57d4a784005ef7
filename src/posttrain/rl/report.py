"""The end of a run: the model at its root, pictures, and what training changed."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich import box
from rich.table import Table

from posttrain.base.console import console
from posttrain.rl.config.rl import RLConfig
from posttrain.rl.evaluation import EVALUATIONS, Difference, evaluation_file, paired_difference
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finish_run

_FEW = 30  # prompts, below which chance decides much of a difference


def finish(run: RunDirectory, config: RLConfig, max_steps: int) -> dict[str, Any]:
    """Export the last or the best checkpoint, draw the plots, print the table, and write and return `result.json`."""
    from posttrain.rl.plots import PICTURES  # heavy: matplotlib

    results = partial(reward_results, run)
    result = finish_run(run, config.run.export, max_steps, pictures=PICTURES, results=results)
    if result["held_out"]:
        console.print(change_table(result["held_out"]), soft_wrap=False)
    console.print(
        f"{result['steps']} steps, {result['completions']:,} completions, {result['tokens']:,} tokens in "
        f"{result['seconds']:.0f} s, peak memory {result['peak_memory_gib']:.1f} GiB\n"
        f"{result['exported']} is exported to {run.path}; plots are in its folder plots, completions in "
        "completions.jsonl"
    )
    return result


def reward_results(run: RunDirectory, rows: list[dict[str, Any]], counters: Mapping[str, Any]) -> dict[str, Any]:
    """How much was generated, the last reward, and as `held_out` what changed from first to last evaluation."""
    return {
        "completions": counters["rows"],
        "reward": next((row["reward"] for row in reversed(rows) if row.get("reward") is not None), None),
        "held_out": {name: vars(change) for name, change in reward_changes(run, rows).items()},
    }


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


def change_table(changes: dict[str, dict[str, float]]) -> Table:
    """Before, after, and how sure the difference is."""
    prompts = next(iter(changes.values()))["prompts"]
    table = Table(
        title=f"{prompts} held-out prompts, first evaluation against last",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        caption=f"{prompts} prompts tell little: ask {_FEW} or more (evaluation.prompts)" if prompts < _FEW else None,
        caption_justify="left",
    )
    for column in ("", "before", "after", "difference, 95 % interval"):
        table.add_column(column, justify="right" if column else "left")
    for name, change in changes.items():
        difference = f"{change['mean']:+.3f}  ({change['low']:+.3f} to {change['high']:+.3f})"
        table.add_row(name, f"{change['before']:.3f}", f"{change['after']:.3f}", difference)
    return table
