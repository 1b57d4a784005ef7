"""Grade kept answers, and keep the grades: other graders grade again without new answers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.files import content_digest, described_hash
from posttrain.base.outputs import output_lines
from posttrain.dataserver.offline.completions import Completion
from posttrain.dataserver.offline.grading import Judged, grade_all, graded_line
from posttrain.evaluate.prompts import GradedPrompts

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answered(Completion):
    """An answer to a prompt."""

    sample: int
    stop_reason: str


@dataclass(frozen=True)
class Grades:
    """Graded answers, in the order of the prompts.

    Attributes:
        path: the file with a line for each answer: its grades, prompt, gold and text.
    """

    path: Path

    def __iter__(self) -> Iterator[Line]:
        with self.path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def rewards(self) -> dict[str, list[float | None]]:
        """The rewards of each prompt's answers by its sample id, None where there is none."""
        found: dict[str, list[float | None]] = {}
        for line in self:
            found.setdefault(line["sample_id"], []).append(line["reward"])
        return found


def graded(prompts: GradedPrompts, answers: Path, folder: Path) -> Grades:
    """The grades of a file of answers, which are computed unless `folder` has them.

    An answer whose grading failed is graded again each time.

    Raises:
        ConfigError: a grader cannot be loaded.
    """
    key = described_hash({"answers": content_digest(answers), "grading": prompts.grading_id})
    path = folder / f"{prompts.name}-{key[:16]}.jsonl"
    if not path.is_file() or any(line["status"] == "error" for line in Grades(path)):
        with output_lines(path) as write:
            for line in grade_answers(prompts, list(_completions(answers))):
                write(line)
    return Grades(path)


def grade_answers(prompts: GradedPrompts, answers: Sequence[Answered]) -> list[Line]:
    """A line for each answer, in order: its grades, prompt, gold and text; ConfigError as `graded`."""
    lines: list[Line] = []

    def done(answer: Answered, judged: Judged) -> None:
        own = {"sample": answer.sample, "stop_reason": answer.stop_reason}
        lines.append({**graded_line(answer, judged), **own})

    grade_all(prompts.loaded, answers, len(answers), done)
    return lines


def _completions(answers: Path) -> Iterator[Answered]:
    with answers.open(encoding="utf-8") as file:
        for number, line in enumerate(map(json.loads, file), start=1):
            yield Answered(
                place=f"{answers.name}:{number}",
                number=number,
                sample_id=line["sample_id"],
                iteration=0,
                text=line["messages"][-1]["content"],
                completion_tokens=line["tokens"],
                truncated=line["stop_reason"] == "length",
                sample=line["sample"],
                stop_reason=line["stop_reason"],
            )
