"""Answers that may stand inside a Markdown fence."""

import re

from pydantic import Field

from posttrain.dataserver.graders.base import Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput

_OPENING = re.compile(r"```[\w+-]*[ \t\r]*")


def unfenced(text: str) -> str | None:
    """What is inside the fence, if the text is one fenced block with nothing around it."""
    first, newline, rest = text.strip().partition("\n")
    if not newline or not rest.endswith("```") or not _OPENING.fullmatch(first):
        return None
    return rest[:-3]


class FencedTextGrader(TextGrader):
    """Base of the graders whose text may be fenced, at a price."""

    fenced_score: float = Field(default=0.0, ge=0, le=1)
    """Factor on the score of a text that is one Markdown fence with nothing around it; 0 refuses fences."""

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """The score of the text inside the fence times `fenced_score`, or that of a bare text."""
        inside = unfenced(text) if self.fenced_score else None
        if inside is None:
            return self.score_bare(text, item)
        bare = self.score_bare(inside, item)
        return Score(bare.value * self.fenced_score, bare.detail or "inside a fence")

    def score_bare(self, text: str, item: GradeInput) -> Score:
        """Score a text that has no fence around it; `Abstain` as in `score`."""
        raise NotImplementedError
