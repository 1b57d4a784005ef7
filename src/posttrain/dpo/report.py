"""The end of a run of preference optimisation: the model at its root, pictures, and what training changed."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from posttrain.base.console import console
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.measures import METRICS
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finish_run, loss_results, summary
from posttrain.runs.plots import Picture

# What is measured, as a person reads it.
_WORDS = {
    "loss": "loss",
    "reward_accuracy": "accuracy: chosen above rejected",
    "reward_margin": "reward margin",
    "chosen_reward": "reward of chosen answers",
    "rejected_reward": "reward of rejected answers",
    "chosen_logprob": "log p of chosen answers (nats)",
    "rejected_logprob": "log p of rejected answers (nats)",
    "divergence": "divergence from the reference (nats)",
}
_PICTURES = {
    "loss": Picture("loss per pair", {"training": "loss", "held out": "eval_loss"}),
    "margin": Picture("reward margin", {"training": "reward_margin", "held out": "eval_reward_margin"}),
    "accuracy": Picture(
        "share of chosen above rejected", {"training": "reward_accuracy", "held out": "eval_reward_accuracy"}
    ),
    "rewards": Picture("reward", {"chosen": "chosen_reward", "rejected": "rejected_reward"}),
    "logprobs": Picture("log p of an answer (nats)", {"chosen": "chosen_logprob", "rejected": "rejected_logprob"}),
    "learning_rate": Picture("learning rate", {"training": "learning_rate"}),
}


def finish(run: RunDirectory, config: DPOConfig, max_steps: int) -> dict[str, Any]:
    """Export the last or the best checkpoint, draw the plots, print the table, and write and return `result.json`."""
    result = finish_run(run, config.run.export, max_steps, pictures=_PICTURES, results=preference_results)
    if result["held_out"]:
        console.print(change_table(result["held_out"]), soft_wrap=False)
    console.print(summary(result))
    return result


def preference_results(rows: list[dict[str, Any]], counters: Mapping[str, Any]) -> dict[str, Any]:
    """What `loss_results` says, the last step's measures, and those of the first and the last evaluation.

    `held_out` has `before` and `after` for each measure; it is empty where there are not two evaluations.
    """
    last = next((row for row in reversed(rows) if "loss" in row), {})
    evaluated = [row for row in rows if "eval_loss" in row]
    held_out = {}
    if len(evaluated) > 1:
        first, final = evaluated[0], evaluated[-1]
        names = [name for name in _WORDS if None not in (first.get(f"eval_{name}"), final.get(f"eval_{name}"))]
        held_out = {name: {"before": first[f"eval_{name}"], "after": final[f"eval_{name}"]} for name in names}
    measures = {name: last[name] for name in METRICS if name in last}
    return {**loss_results(rows, counters), **measures, "held_out": held_out}


def change_table(held_out: dict[str, dict[str, float]]) -> Table:
    """Each measure before and after."""
    table = Table(
        title="Held-out rows, first evaluation against last",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
    )
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in held_out.items():
        table.add_row(_WORDS[name], f"{values['before']:.3f}", f"{values['after']:.3f}")
    return table
