"""Grade kept answers, and keep the grades: other graders grade again without new answers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.files import content_digest
from posttrain.base.outputs import output_lines
from posttrain.data.tokenized import described_hash
from posttrain.dataserver.offline.completions import Completion
from posttrain.dataserver.offline.grading import Judged, grade_all, graded_line
from posttrain.evaluate.prompts import GradedPrompts

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Answered(Completion):
    """A kept answer."""

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
        completions = list(_completions(answers))
        with output_lines(path) as write:

            def done(completion: _Answered, judged: Judged) -> None:
                own = {"sample": completion.sample, "stop_reason": completion.stop_reason}
                write({**graded_line(completion, judged), **own})

            grade_all(prompts.loaded, completions, len(completions), done)
    return Grades(path)


def _completions(answers: Path) -> Iterator[_Answered]:
    with answers.open(encoding="utf-8") as file:
        for number, line in enumerate(map(json.loads, file), start=1):
            yield _Answered(
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
