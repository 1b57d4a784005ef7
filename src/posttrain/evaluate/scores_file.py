"""The scores of one model in one task as a file, so that they can be compared later."""

import json
from pathlib import Path

from posttrain.base.files import atomic_write_text
from posttrain.errors import RunError
from posttrain.evaluate.statistics.estimate import Clusters
from posttrain.evaluate.statistics.scores import Scores
from posttrain.evaluate.tasks.base import Measured


def write_scores(output: Path, model: str, task: str, measured: Measured) -> None:
    """Write the value of each prompt by each measure, with the prompts' clusters."""
    scores = {
        name: {"values": dict(each.values), "ungraded": each.ungraded, "scale": each.scale}
        for name, each in measured.scores.items()
    }
    clusters = None if measured.clusters is None else dict(measured.clusters)
    path = _place(output, model, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, json.dumps({"scores": scores, "clusters": clusters}, ensure_ascii=False) + "\n")


def read_scores(output: Path, model: str, task: str) -> tuple[dict[str, Scores], Clusters | None]:
    """What `write_scores` wrote into the output of an evaluation.

    Raises:
        RunError: the model has no scores in that task.
    """
    path = _place(output, model, task)
    if not path.is_file():
        raise RunError(f"{output} has no scores of {model} in the task {task}")
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: Scores(**each) for name, each in found["scores"].items()}, found["clusters"]


def _place(output: Path, model: str, task: str) -> Path:
    return output / model / f"{task}.scores.json"
