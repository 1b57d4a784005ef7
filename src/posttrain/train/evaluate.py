"""Graded answers of an evaluation during training: the file that keeps them, and what they come to."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.base.files import atomic_write_text
from posttrain.errors import RunError

EVALUATIONS = "evaluations"
"""Name of the folder within a run directory."""

Line = Mapping[str, Any]
"""An answer for people to read, with `reward`, `reason`, `scores` by grader, `tokens` and `truncated`."""


def evaluation_file(folder: Path, step: int) -> Path:
    """The file with the answers of the evaluation after `step` steps."""
    return folder / f"step-{step:06d}.jsonl"


def discard_evaluations(folder: Path, after_step: int) -> None:
    """Remove the evaluations after `after_step`, which a resumed run makes again."""
    for path in folder.glob("step-*.jsonl"):
        if int(path.stem.removeprefix("step-")) > after_step:
            path.unlink()


def keep_answers(folder: Path, step: int, lines: Sequence[Line]) -> None:
    """Write the answers of the evaluation after `step` steps."""
    path = evaluation_file(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    atomic_write_text(path, text.encode(errors="replace").decode())


def answer_means(lines: Sequence[Line], what: str) -> dict[str, float]:
    """Mean reward, each grader's mean score, mean length, and the shares of answers that were cut or not graded.

    Args:
        what: the answers, for messages.

    Raises:
        RunError: none has a reward.
    """
    rewards = [line["reward"] for line in lines if line["reward"] is not None]
    if not rewards:
        reason = next((line["reason"] for line in lines if line["reason"]), "all prompts are too long")
        raise RunError(f"none of the {len(lines)} {what} has a reward: {reason}")
    scores: dict[str, list[float]] = {}
    for line in lines:
        for grader, score in line["scores"].items():
            if score is not None:
                scores.setdefault(grader, []).append(score)
    return {
        "reward": fmean(rewards),
        **{f"graders/{grader}": fmean(values) for grader, values in sorted(scores.items())},
        "tokens": fmean(line["tokens"] for line in lines),
        "truncated": fmean(line["truncated"] for line in lines),
        "ungraded": 1 - len(rewards) / len(lines),
    }
