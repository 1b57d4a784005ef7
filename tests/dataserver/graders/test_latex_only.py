"""latex_only: cases beyond its table, and very long texts."""

import time

import pytest

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.latex_only import LatexOnly
from posttrain.dataserver.graders.text.completions import GradeInput


def score(answer: str) -> float:
    given = LatexOnly().score(GradeInput(answer, answer))
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize(
    "answer",
    [
        r"\fbox{7}",
        r"\boxed {7}",
        r"\begin{cases} \begin{cases} a \end{cases} \end{cases}",
        r"\begin{align*}a &= b\end{align*}",
        r"\[ a \\[2ex] b \]",
        r"$\text{a } \{ b \}$",
        r"\[ x \text{ if $y$} \]",
        r"$a \\ b$",
    ],
)
def test_one_expression(answer: str):
    assert score(answer) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "$$$$", "$", "$$$", r"\(\)", r"\[ \, \]", r"\boxed{\boxed{}}", r"\begin{a}\end{a}", r"\begin{a} x \end{b}",
        r"\begin{a} \begin{a} x \end{a}", r"\( \( x \)", r"\(x\]", r"$$x$", r"$x$$", r"\boxed{x}}", r"{x}", r"\end{a}x",
        r"\frac{1}{2}", "$x$\0", "\ud800",
    ],
)  # fmt: skip
def test_none_or_more_than_one(answer: str):
    assert score(answer) == 0.0


@pytest.mark.parametrize("piece", ["$", "{", r"\boxed{", r"\begin{a}", r"\(", r"\,", "\\", "a", " ", "$a"])
def test_a_million_characters_take_seconds_at_most(piece: str):
    inside = (piece * 1_000_000)[:1_000_000]
    begin = time.process_time()
    for answer in (inside, f"${inside}$", rf"\boxed{{{inside}}}"):
        score(answer)

    assert time.process_time() - begin < 8
