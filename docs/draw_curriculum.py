"""Draw docs/curriculum.png: python docs/draw_curriculum.py"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from posttrain.data.curriculum.curriculum import Curriculum, Draw, Stage

STAGES = [
    Stage("warm-up", 20, {"easy": 1}),
    Stage("mix", 60, {"easy": 1, "maths": 2, "code": 1}),
    Stage("hard", 90, {"maths": 3, "code": 2}),
]
SIZES = {"easy": 300, "maths": 400, "code": 250}
ROWS_PER_STEP = 8


def main() -> None:
    curriculum = Curriculum(STAGES, SIZES, ROWS_PER_STEP, seed=0)
    draws = [curriculum.step(step) for step in range(curriculum.total_steps)]
    figure, (rows, deviation) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    for index, name in enumerate(SIZES):
        # How many epochs of the data set have been drawn so far.
        used = [sum(draw.dataset == name for draw in step) for step in draws]
        total, line = 0, []
        for count in used:
            total += count
            line.append(total / SIZES[name])
        rows.plot(range(1, len(line) + 1), line, label=f"{name} ({SIZES[name]} rows)", color=f"C{index}")
        deviation.plot(range(1, len(line) + 1), _deviations(draws, name), color=f"C{index}", linewidth=1)
    rows.set_ylabel("epochs")
    rows.legend()
    deviation.set_ylabel("rows off the exact share")
    deviation.set_xlabel("optimizer step")
    deviation.axhline(1, color="grey", linestyle=":")
    deviation.axhline(-1, color="grey", linestyle=":")
    start = 0
    for stage in STAGES:
        for axes in (rows, deviation):
            axes.axvline(stage.until_step, color="grey", linewidth=0.8)
        rows.text((start + stage.until_step) / 2, 1.02, stage.name, transform=rows.get_xaxis_transform(), ha="center")
        start = stage.until_step
    figure.savefig(Path(__file__).with_name("curriculum.png"), dpi=110)


def _deviations(draws: list[list[Draw]], name: str) -> list[float]:
    """Rows of the data set drawn in the stage so far, minus its exact share of all rows drawn in the stage."""
    deviations, stage_name, mine, everything = [], "", 0, 0
    stages = {stage.name: stage for stage in STAGES}
    for row in draws:
        stage = stages[row[0].stage]
        if stage.name != stage_name:
            stage_name, mine, everything = stage.name, 0, 0
        mine += sum(draw.dataset == name for draw in row)
        everything += len(row)
        share = stage.weights.get(name, 0) / sum(stage.weights.values())
        deviations.append(mine - share * everything)
    return deviations


if __name__ == "__main__":
    main()
