"""Plots of a run: PNG files with a background shade per stage."""

import numpy as np
import pytest
from matplotlib import colors, image

from posttrain.runs.plots import Picture, plot_run


def steps(*stages: str) -> list[dict]:
    """One line of metrics for each step of the given stages."""
    return [
        {"step": step, "stage": stage, "loss": 2.0 / step, "learning_rate": 1e-3 / step}
        for step, stage in enumerate(stages, start=1)
    ]


EVALUATIONS = [{"step": 0, "eval_loss": 2.5}, {"step": 4, "eval_loss": 0.75}]


def shade(index: int) -> np.ndarray:
    """The background colour of stage `index` in the plot: 12% of its colour on white."""
    return 1 - 0.12 * (1 - np.array(colors.to_rgb(f"C{index + 2}")))


def columns_of(path, colour: np.ndarray) -> np.ndarray:
    """The pixel columns in which `colour` fills more than a tenth of the height."""
    pixels = image.imread(path)[..., :3]
    found = (np.abs(pixels - colour) < 0.01).all(axis=-1)
    return np.flatnonzero(found.mean(axis=0) > 0.1)


def test_two_pictures_are_drawn_as_png(tmp_path):
    written = plot_run([*steps("a", "a", "b", "b"), *EVALUATIONS], tmp_path / "plots")
    assert written == [tmp_path / "plots" / "loss.png", tmp_path / "plots" / "learning_rate.png"]
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        height, width, _ = image.imread(path).shape
        assert (width, height) == (9 * 120, 4.5 * 120)


def test_the_stages_lie_side_by_side_and_are_as_wide_as_they_are_long(tmp_path):
    # Three steps of one stage, then one step of another.
    for path in plot_run(steps("long", "long", "long", "short"), tmp_path):
        long, short = columns_of(path, shade(0)), columns_of(path, shade(1))
        assert long.max() < short.min()
        assert len(long) == pytest.approx(3 * len(short), rel=0.03)
        assert columns_of(path, shade(2)).size == 0


def test_a_run_without_a_step_has_no_picture(tmp_path):
    assert plot_run([], tmp_path / "plots") == []
    assert plot_run(EVALUATIONS[:1], tmp_path / "plots") == []
    assert not (tmp_path / "plots").exists()


def test_a_run_of_one_step_can_be_drawn(tmp_path):
    assert len(plot_run(steps("only"), tmp_path)) == 2


def test_a_loss_that_is_no_number_leaves_a_gap(tmp_path):
    rows = steps("a", "a", "a")
    rows[1]["loss"] = float("nan")
    assert len(plot_run(rows, tmp_path)) == 2


def test_the_validation_loss_is_drawn_beside_the_other(tmp_path):
    with_it = plot_run([*steps("a", "a", "a", "a"), *EVALUATIONS], tmp_path / "with")[0]
    without = plot_run(steps("a", "a", "a", "a"), tmp_path / "without")[0]
    orange = np.array(colors.to_rgb("C1"))
    near = [np.abs(image.imread(path)[..., :3] - orange) < 0.05 for path in (with_it, without)]
    assert near[0].all(axis=-1).sum() > 100
    assert near[1].all(axis=-1).sum() == 0


def test_a_stage_name_is_text_and_not_a_formula(tmp_path):
    assert len(plot_run(steps(r"$\frac$", "a_{$ and $b"), tmp_path)) == 2


def test_drawing_again_replaces_the_pictures(tmp_path):
    first = plot_run(steps("a"), tmp_path)[0].read_bytes()
    second = plot_run(steps("a", "b"), tmp_path)[0].read_bytes()
    assert first != second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learning_rate.png", "loss.png"]


def test_curves_may_lie_in_an_object_or_share_the_start_of_their_keys(tmp_path):
    rows = [
        {**row, "seconds": {"wait": 1.0}, "filters/length": 0.25, "filters/spread": 0.5} for row in steps("a", "a", "a")
    ]
    pictures = {
        "waits": Picture("seconds", {"trainer": "seconds/wait"}),
        "missing": Picture("seconds", {"trainer": "seconds/idle"}),
        "filters": Picture("share", {"": "filters/"}),
        "nothing": Picture("share", {"": "graders/"}),
    }
    assert [path.stem for path in plot_run(rows, tmp_path, pictures)] == ["waits", "filters"]
    pixels = image.imread(tmp_path / "filters.png")[..., :3]
    for curve in ("C0", "C1"):
        assert (np.abs(pixels - np.array(colors.to_rgb(curve))) < 0.01).all(axis=-1).any()
