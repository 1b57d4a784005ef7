"""Grader `completion_length_cap`: check that the completion is no longer than a limit."""

from typing import ClassVar, Literal

from pydantic import Field

from posttrain.dataserver.graders.base import Abstain, Example, Grader, Score
from posttrain.dataserver.graders.text.completions import GradeInput


class CompletionLengthCap(Grader):
    """1 if the completion has at most `max_tokens` tokens, else `over_score`; meant as a gate.

    An empty completion is short too, so this says nothing about the content.
    """

    type: Literal["completion_length_cap"] = "completion_length_cap"

    max_tokens: int = Field(ge=1)
    """Maximum length for a score of 1, in tokens."""

    over_score: float = Field(default=0.0, ge=0, lt=1)
    """Score of a longer completion."""

    on_missing: Literal["abstain", "fail"] = "abstain"
    """What to give if the trainer did not report the length: no score, or `over_score`."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example("fine", 1.0, completion_tokens=100, params={"max_tokens": 100}),
        Example("too long", 0.0, completion_tokens=101, params={"max_tokens": 100}),
        Example("too long", 0.2, completion_tokens=101, params={"max_tokens": 100, "over_score": 0.2}),
        Example("?", None, params={"max_tokens": 100}, note="an unknown length is not too long"),
        Example("?", 0.0, params={"max_tokens": 100, "on_missing": "fail"}),
    )

    def score(self, item: GradeInput) -> Score | float:
        """1 or `over_score`."""
        if item.completion_tokens is None and self.on_missing == "abstain":
            raise Abstain("the trainer did not send the number of tokens")
        if item.completion_tokens is None:
            return Score(self.over_score, "the trainer did not send the number of tokens")
        return 1.0 if item.completion_tokens <= self.max_tokens else self.over_score
