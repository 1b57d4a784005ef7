"""Pictures of a run of reinforcement learning."""

from pathlib import Path
from typing import Any

from toolkit.core.runs.plots import Curve, draw


def plot_run(rows: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Draw reward, length, and what else metrics.jsonl holds, over the optimizer steps; stages are shaded.

    Returns:
        The files written; empty where there is nothing to draw.
    """
    steps = [row for row in rows if "loss" in row]
    if not steps:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    held_out = [row for row in rows if "eval_reward" in row]
    pictures = [
        ("reward", "mean reward", [Curve("training", steps, "reward"), Curve("held out", held_out, "eval_reward")]),
        (
            "length",
            "completion length (tokens)",
            [Curve("mean", steps, "completion_tokens"), Curve("held out", held_out, "eval_tokens")],
        ),
        ("kl", "KL divergence from the start (nats)", [Curve("training", steps, "kl")]),
        ("entropy", "entropy (nats per token)", [Curve("training", steps, "entropy")]),
        (
            "zero_variance",
            "share of groups whose rewards are all equal",
            [Curve("training", steps, "zero_variance_share")],
        ),
    ]
    return [
        draw(steps, curves, label, folder / f"{name}.png") for name, label, curves in pictures if curves[0].values()
    ]
