"""Pictures of a finished run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator


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
    losses = [Curve("training", steps, "loss"), Curve("validation", evaluations, "eval_loss")]
    return [
        draw(steps, losses, "loss per trained token (nats)", folder / "loss.png"),
        draw(steps, [Curve("training", steps, "learning_rate")], "learning rate", folder / "learning_rate.png"),
    ]


@dataclass(frozen=True)
class Curve:
    """One key of some lines of metrics.jsonl."""

    label: str
    rows: list[dict[str, Any]]
    key: str

    def values(self) -> list[tuple[int, float]]:
        """Steps and values, where there are any."""
        return [(row["step"], row[self.key]) for row in self.rows if row.get(self.key) is not None]


def draw(steps: list[dict[str, Any]], curves: list[Curve], label: str, path: Path) -> Path:
    """Draw curves over the optimizer steps, whose lines say which stage each belongs to; the first is drawn as a line,
    the others with a mark at each value."""
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    _shade_stages(axes, steps)
    for number, curve in enumerate(curves):
        if points := curve.values():
            marks: dict[str, Any] = {"linewidth": 1.2} if number == 0 else {"marker": "o", "markersize": 4}
            axes.plot(*zip(*points, strict=True), label=curve.label, **marks)
    if len(axes.get_lines()) > 1:
        axes.legend(loc="best")
    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
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
