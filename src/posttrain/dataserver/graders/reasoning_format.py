"""Grader `reasoning_format`: check that the reasoning is between its tags and an answer follows."""

from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from posttrain.dataserver.graders.base import Abstain, Example, Grader, Score
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags, split_completion, visible

_TAGS = ReasoningTags()
_IN_PROMPT = ReasoningTags(opened_in_prompt=True)
_STRICT = {"graded": False}


class ReasoningFormat(Grader):
    """Whether a completion is `<think>reasoning</think>` and an answer, with the data set's tags.

    1 for: the opening tag at the start and nowhere else, one closing tag, reasoning and an answer that are not empty
    (invisible characters do not count), and the answer on a line of its own. Otherwise, with `graded`, the sum, within
    [0, 1], of

    - 0.125 each for an opening tag, for its being at the start, for a closing tag, and for its coming after the
      opening one (−0.125 if it comes before);
    - 0.5 for reasoning and an answer; −0.25 if both tags are present and one of the two is empty;
    - −0.1 if the answer follows the closing tag on the same line, unless a tab separates them;
    - −0.15 for each extra tag.

    If the prompt already opens the reasoning (`opened_in_prompt`), a closing tag also earns the points of the opening
    tag, and an opening tag is an extra one. What the answer says does not count: give this a small weight, or make it a
    gate.
    """

    type: Literal["reasoning_format"] = "reasoning_format"

    graded: bool = True
    """Whether an almost right format earns part of the score; otherwise it earns 0, and it does not matter which line
    the answer is on."""

    min_reasoning_chars: int = Field(default=1, ge=1)
    """Minimum number of visible characters, without tags and surrounding white space, for reasoning to count as not
    empty."""

    needs_tags: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example("<think>a + b</think>\nc", 1.0, tags=_TAGS),
        Example("\n<think>\na + b\n</think>\n\nc\n", 1.0, tags=_TAGS, note="white space around it does not count"),
        Example("<think>a + b</think> c", 0.9, tags=_TAGS, note="the answer on the same line"),
        Example("<think>a + b</think>c", 0.9, tags=_TAGS),
        Example("<think>a + b</think>c", 1.0, tags=_TAGS, params=_STRICT),
        Example("So: <think>a + b</think>\nc", 0.875, tags=_TAGS, note="text before the tag"),
        Example("<think>a <think>b</think>\nc", 0.85, tags=_TAGS, note="opened twice"),
        Example("<think>a</think>\nb\n<think>c</think>\nd", 0.7, tags=_TAGS, note="two blocks"),
        Example("<think>a</think>\nb\n<think>c</think>\nd", 0.0, tags=_TAGS, params=_STRICT),
        Example("<think>a + b</think>", 0.25, tags=_TAGS, note="no answer"),
        Example("<think> </think>\nc", 0.25, tags=_TAGS, note="no reasoning"),
        Example("<think>\u200b</think>\nc", 0.25, tags=_TAGS, note="invisible characters are not reasoning"),
        Example("<think>a + b</think>\n\u2060", 0.25, tags=_TAGS),
        Example("<think>\U0001d159</think>\nc", 0.25, tags=_TAGS),
        Example("<think>hm</think>\nc", 0.25, tags=_TAGS, params={"min_reasoning_chars": 20}),
        Example("<think>a + b", 0.25, tags=_TAGS, note="never closed"),
        Example("a + b</think>\nc", 0.125, tags=_TAGS, note="never opened, so no answer is rewarded"),
        Example("a</think>b<think>c", 0.125, tags=_TAGS, note="closed before it is opened"),
        Example("a</think>b</think>c", 0.0, tags=_TAGS),
        Example("a + b</think>\nc", 1.0, tags=_IN_PROMPT, note="opened in the prompt"),
        Example("<think>a + b</think>\nc", 0.85, tags=_IN_PROMPT, note="and opened again"),
        Example("a + b, never closed", 0.0, tags=_IN_PROMPT),
        Example("a + b = c", 0.0, tags=_TAGS, note="no tags"),
        Example("", 0.0, tags=_TAGS),
    )

    def score(self, item: GradeInput) -> Score | float:
        """In [0, 1]."""
        if item.tags is None:
            raise Abstain("the data set has no reasoning tags")
        form = _read(item.completion.strip(), item.tags, self.min_reasoning_chars)
        return Score(_points(form) if self.graded else float(form.is_right), _fault(form))


class _Form(NamedTuple):
    """The form of a completion."""

    opened: bool
    opened_at_start: bool
    closed: bool
    in_order: bool
    """The opening tag, or a prompt that contains it, comes before all closing tags."""
    tags_too_many: int
    has_reasoning: bool
    answer: str | None
    """None if the tags do not delimit one."""

    @property
    def is_filled(self) -> bool:
        return self.has_reasoning and self.has_answer

    @property
    def has_answer(self) -> bool:
        return bool(self.answer and visible(self.answer))

    @property
    def is_right(self) -> bool:
        return self.opened_at_start and self.closed and self.is_filled and not self.tags_too_many


def _read(text: str, tags: ReasoningTags, min_reasoning_chars: int) -> _Form:
    opens, closes = text.count(tags.open), text.count(tags.close)
    reasoning, answer = split_completion(text, tags)
    bare = visible((reasoning or "").replace(tags.open, "").replace(tags.close, ""))
    by_prompt = tags.opened_in_prompt and closes > 0
    return _Form(
        opened=by_prompt or opens > 0,
        opened_at_start=by_prompt or (not tags.opened_in_prompt and text.startswith(tags.open)),
        closed=closes > 0,
        in_order=by_prompt or 0 <= text.find(tags.open) < text.find(tags.close),
        tags_too_many=max(0, opens - (not tags.opened_in_prompt)) + max(0, closes - 1),
        has_reasoning=len(bare) >= min_reasoning_chars,
        answer=answer,
    )


def _points(form: _Form) -> float:
    points = 0.125 * (form.opened + form.opened_at_start + form.closed)
    if form.opened and form.closed:
        points += 0.125 if form.in_order else -0.125
    if form.answer is not None:
        points += 0.5 if form.is_filled else -0.25
        on_same_line = form.answer[:1] == " " or form.answer[:1].strip()
        points -= 0.1 if on_same_line else 0.0
    return min(1.0, max(0.0, points - 0.15 * form.tags_too_many))


def _fault(form: _Form) -> str:
    faults = {
        "not opened at the start": not form.opened_at_start,
        "not closed": not form.closed,
        "too many tags": form.tags_too_many > 0,
        "no reasoning": form.answer is not None and not form.has_reasoning,
        "no answer": form.answer is not None and not form.has_answer,
    }
    return ", ".join(name for name, is_there in faults.items() if is_there)
