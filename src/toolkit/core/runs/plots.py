"""Pictures of a finished run."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes


def plot_run(rows: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Draw `loss.png` and `learning_rate.png` from the lines of metrics.jsonl; stages are shaded.

    Returns:
        The files written; empty where there is nothing to draw.
    """
    steps = [row for row in rows if "loss" in row]
    if not steps:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    evaluations = [row for row in rows if "eval_loss" in row]
    return [
        _draw(steps, evaluations, "loss", "loss per trained token (nats)", folder / "loss.png"),
        _draw(steps, [], "learning_rate", "learning rate", folder / "learning_rate.png"),
    ]


def _draw(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]], key: str, label: str, path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    _shade_stages(axes, steps)
    axes.plot([row["step"] for row in steps], [row[key] for row in steps], linewidth=1.2, label="training")
    if evaluations:
        axes.plot(
            [row["step"] for row in evaluations],
            [row["eval_loss"] for row in evaluations],
            marker="o",
            markersize=4,
            label="validation",
        )
        axes.legend(loc="upper right")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(label)
    axes.set_xlim(left=0, right=max(row["step"] for row in steps))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _shade_stages(axes: Axes, steps: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(row["stage"] for row in steps))
    for index, name in enumerate(names):
        members = [row["step"] for row in steps if row["stage"] == name]
        start, end = min(members) - 1, max(members)
        axes.axvspan(start, end, color=f"C{index + 2}", alpha=0.12, linewidth=0)
        # A name is text: two dollar signs in it are no formula.
        placed = {"transform": axes.get_xaxis_transform(), "ha": "center", "fontsize": 9, "parse_math": False}
        axes.text((start + end) / 2, 1.01, name, **placed)
