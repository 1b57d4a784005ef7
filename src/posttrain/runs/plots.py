"""Draw the plots of a finished run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Rows = list[dict[str, Any]]
"""Lines of metrics.jsonl."""


@dataclass(frozen=True)
class Picture:
    """One picture of a run.

    Attributes:
        label: label of the vertical axis.
        curves: the name of each curve, and its key in metrics.jsonl: `a/b` is also `b` in the object `a`, and with
            `a/`, every key that begins so is a curve.
    """

    label: str
    curves: Mapping[str, str]


PICTURES = {
    "loss": Picture("loss per trained token (nats)", {"training": "loss", "validation": "eval_loss"}),
    "learning_rate": Picture("learning rate", {"training": "learning_rate"}),
}


def plot_run(rows: Rows, folder: Path, pictures: Mapping[str, Picture] = PICTURES) -> list[Path]:
    """Draw each picture that has data over the optimizer steps, with the stages shaded.

    Returns:
        The files written, named after the pictures; empty if no step was done.
    """
    steps = [row for row in rows if "loss" in row]
    if not steps:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, picture in pictures.items():
        curves = {label: _points(rows, key) for label, key in _keys(rows, picture).items()}
        if any(curves.values()):
            paths.append(_draw(steps, curves, picture.label, folder / f"{name}.png"))
    return paths


def overlaid(runs: Mapping[str, Rows], label: str, keys: Sequence[str]) -> str | None:
    """Draw the same curves of several runs over each other.

    Args:
        runs: the lines of metrics.jsonl, by the runs' names.
        label: label of the vertical axis.
        keys: of metrics.jsonl: the first one is drawn as a line, the others with a marker at each value.

    Returns:
        The picture in SVG; None if there is nothing to draw.
    """
    curves = {name: [_points(rows, key) for key in keys] for name, rows in runs.items()}
    if not any(points for each in curves.values() for points in each):
        return None
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for number, (name, each) in enumerate(curves.items()):
        for order, points in enumerate(each):
            if points:
                marks: dict[str, Any] = {"linewidth": 1.2} if order == 0 else {"marker": "o", "linestyle": "--"}
                shown = name if order == 0 else f"{name}, held out"
                axes.plot(*zip(*points, strict=True), color=f"C{number % 10}", label=shown, markersize=4, **marks)
    for text in axes.legend(loc="best").get_texts():
        text.set_parse_math(False)  # two dollar signs in a name make no formula
    _name_axes(axes, label)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    """The figure in SVG, the same text for the same picture; the figure is closed."""
    written = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "posttrain"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    plt.close(figure)
    return written.getvalue()


def _name_axes(axes: Axes, label: str) -> None:
    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(label)


def _keys(rows: Rows, picture: Picture) -> dict[str, str]:
    """The name of each curve, and its key."""
    found = {name: key for name, key in picture.curves.items() if not key.endswith("/")}
    for start in (key for key in picture.curves.values() if key.endswith("/")):
        found |= {key.removeprefix(start): key for key in sorted({*chain(*rows)}) if key.startswith(start)}
    return found


def _points(rows: Rows, key: str) -> list[tuple[int, float]]:
    """(step, value) of the rows that have a value for `key`."""
    outer, _, inner = key.partition("/")
    found = ((row["step"], row[key] if key in row else row.get(outer, {}).get(inner)) for row in rows)
    return [(step, value) for step, value in found if value is not None]


def _draw(steps: Rows, curves: Mapping[str, list[tuple[int, float]]], label: str, path: Path) -> Path:
    """Draw the first curve as a line, the others with a marker at each value."""
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    _shade_stages(axes, steps)
    for number, (name, points) in enumerate(curves.items()):
        if points:
            marks: dict[str, Any] = {"linewidth": 1.2} if number == 0 else {"marker": "o", "markersize": 4}
            axes.plot(*zip(*points, strict=True), label=name, **marks)
    if len(axes.get_lines()) > 1:
        axes.legend(loc="best")
    _name_axes(axes, label)
    axes.set_xlim(left=0, right=max(row["step"] for row in steps))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _shade_stages(axes: Axes, steps: Rows) -> None:
    names = list(dict.fromkeys(row["stage"] for row in steps))
    for index, name in enumerate(names):
        members = [row["step"] for row in steps if row["stage"] == name]
        start, end = min(members) - 1, max(members)
        axes.axvspan(start, end, color=f"C{index + 2}", alpha=0.12, linewidth=0)
        # A name is plain text: two dollar signs in it do not make a formula.
        placed = {"transform": axes.get_xaxis_transform(), "ha": "center", "fontsize": 9, "parse_math": False}
        axes.text((start + end) / 2, 1.01, name, **placed)
