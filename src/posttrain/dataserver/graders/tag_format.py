"""Grader `tag_format`: check that reasoning and solution are each between their own tags."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from posttrain.dataserver.graders.base import Example, Grader, Score
from posttrain.dataserver.graders.text.completions import GradeInput, visible

_RIGHT = "<start_working_out>6 × 7<end_working_out><SOLUTION>42</SOLUTION>"
_APPROXIMATE = {"mode": "approximate"}
_IN_PROMPT = {"opened_in_prompt": True}


class TagFormat(Grader):
    """Whether a completion is reasoning between two tags and then a solution between two others.

    `exact` is 1 for the complete form, with visible text inside both pairs, each tag once, and nothing but white space
    elsewhere; else 0. `approximate` is the share of the tags that occur exactly once, in any order; a text of nothing
    but tags earns 0.

    Both are rewards in points, rescaled. 3 points for the exact form are 3 × `exact`. Half a point for each of t tags
    that occurs once, and −1 for each of the others, are 1.5 × t × `approximate` − t: from −3 to 1.5 for the three tags
    that remain with `opened_in_prompt`. So weights of 3 and 1.5 × t keep their proportion; the constant t does not
    change any advantage within a group.
    """

    type: Literal["tag_format"] = "tag_format"

    mode: Literal["exact", "approximate"] = "exact"
    """Whether the whole form must be right, or each tag counts on its own."""

    reasoning_open: str = Field(default="<start_working_out>", pattern=r"\S")
    """Opens the reasoning."""

    reasoning_close: str = Field(default="<end_working_out>", pattern=r"\S")
    """Closes the reasoning."""

    solution_open: str = Field(default="<SOLUTION>", pattern=r"\S")
    """Opens the solution."""

    solution_close: str = Field(default="</SOLUTION>", pattern=r"\S")
    """Closes the solution."""

    opened_in_prompt: bool = False
    """Whether the prompt already ends with `reasoning_open`: then that tag does not count, and must not occur again."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(_RIGHT, 1.0),
        Example(f"\n{_RIGHT}\n", 1.0),
        Example("<start_working_out>6 × 7<end_working_out>\n<SOLUTION>42</SOLUTION>", 1.0),
        Example(f"Well: {_RIGHT}", 0.0, note="text before it"),
        Example(f"{_RIGHT} I think", 0.0, note="text after it"),
        Example("<start_working_out>6 × 7<end_working_out>So<SOLUTION>42</SOLUTION>", 0.0, note="text between"),
        Example("<start_working_out> <end_working_out><SOLUTION>42</SOLUTION>", 0.0, note="no reasoning"),
        Example("<start_working_out>6 × 7<end_working_out><SOLUTION></SOLUTION>", 0.0, note="no solution"),
        Example("<start_working_out>6 × 7<end_working_out><SOLUTION>\u200b</SOLUTION>", 0.0, note="nothing visible"),
        Example(_RIGHT + _RIGHT, 0.0, note="everything twice"),
        Example("6 × 7<end_working_out><SOLUTION>42</SOLUTION>", 1.0, params=_IN_PROMPT),
        Example(_RIGHT, 0.0, params=_IN_PROMPT, note="opened again"),
        Example(_RIGHT, 1.0, params=_APPROXIMATE),
        Example("42 <SOLUTION>42</SOLUTION>", 0.5, params=_APPROXIMATE, note="two of four tags"),
        Example(_RIGHT + "<SOLUTION>43</SOLUTION>", 0.5, params=_APPROXIMATE, note="a tag that occurs twice is wrong"),
        Example("<SOLUTION>42</SOLUTION>", 2 / 3, params={**_APPROXIMATE, **_IN_PROMPT}, note="0 points: −1 + ½ + ½"),
        Example("42", 0.0, params={**_APPROXIMATE, **_IN_PROMPT}, note="−3 points"),
        Example("<start_working_out><end_working_out><SOLUTION></SOLUTION>", 0.0, params=_APPROXIMATE),
        Example("\u200b<SOLUTION>\u2060</SOLUTION>", 0.0, params=_APPROXIMATE),
        Example("", 0.0),
    )

    @model_validator(mode="after")
    def _tags_differ(self) -> "TagFormat":
        tags = self._tags()
        for tag in tags:
            if sum(tag in other for other in tags) > 1:
                raise ValueError(f"the tag {tag!r} is contained in another one; make them all different")
        return self

    def score(self, item: GradeInput) -> Score | float:
        """In [0, 1]."""
        text = item.completion.strip()
        tags = self._tags()[self.opened_in_prompt :]
        once = sum(text.count(tag) == 1 for tag in tags)
        if self.mode == "approximate":
            share = once / len(tags) if _without(text, tags) else 0.0
            return Score(share, f"{once} of {len(tags)} tags appear exactly once")
        is_right = once == len(tags) and text.count(self.reasoning_open) == (not self.opened_in_prompt)
        return float(is_right and self._has_form(text))

    def _tags(self) -> tuple[str, ...]:
        return self.reasoning_open, self.reasoning_close, self.solution_open, self.solution_close

    def _has_form(self, text: str) -> bool:
        before, _, rest = ("", "", text) if self.opened_in_prompt else text.partition(self.reasoning_open)
        reasoning, _, rest = rest.partition(self.reasoning_close)
        between, _, rest = rest.partition(self.solution_open)
        solution, closed, after = rest.partition(self.solution_close)
        filled, empty = (reasoning, solution, closed), (before, between, after)
        return all(map(visible, filled)) and not any(part.strip() for part in empty)


def _without(text: str, tags: tuple[str, ...]) -> str:
    for tag in tags:
        text = text.replace(tag, "")
    return visible(text)
