"""Grader `latex_only`: check that the answer is one LaTeX expression and nothing else."""

import re
from typing import ClassVar, Literal

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput, without_invisible

_TOKEN = re.compile(
    r"\\(?P<edge>begin|end)\s*\{(?P<name>[A-Za-z]+\*?)\}|(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|\$\$?|[{}]", re.DOTALL
)
_CLOSING = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}
_SPACES = "boxed|fbox|q?quad|thinspace|medspace|thickspace|enspace|text[a-z]*|math[a-z]*|mbox|displaystyle|textstyle"
_NOTHING = re.compile(
    rf"(?:\\(?:{_SPACES})(?![A-Za-z])|\\[,;:!> \\]|\\(?:[hv]?phantom|[hv]space\*?)\s*\{{[^{{}}]*\}}|[\s{{}}$~&])*"
)


class LatexOnly(TextGrader):
    r"""1 if the answer is exactly one LaTeX expression, else 0. It does not check whether it is right.

    An expression is `$…$`, `$$…$$`, `\(…\)`, `\[…\]`, `\boxed{…}`, `\fbox{…}` or `\begin{…}…\end{…}`, with something
    visible inside. White space around it is ignored.
    """

    type: Literal["latex_only"] = "latex_only"

    examples: ClassVar[tuple[Example, ...]] = (
        Example(r"$\frac{1}{2}$", 1.0),
        Example(" $$x^2$$\n", 1.0),
        Example(r"\(x\)", 1.0),
        Example("\\[\nx\n\\]", 1.0),
        Example(r"\boxed{\{1, 2\}}", 1.0, note="escaped braces are text"),
        Example(r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", 1.0),
        Example(r"$\boxed{72}$", 1.0),
        Example(r"\boxed{$72$}", 1.0),
        Example("72", 0.0),
        Example("It is $72$", 0.0),
        Example("$72$.", 0.0),
        Example("$a$ or $b$", 0.0, note="two expressions"),
        Example("$a$$b$", 0.0),
        Example(r"\boxed{1} and then {x}", 0.0),
        Example(r"\(a\) or \(b\)", 0.0),
        Example(r"\begin{aligned}a\end{aligned} or \begin{aligned}b\end{aligned}", 0.0),
        Example("$$", 0.0, note="empty"),
        Example("$ $", 0.0),
        Example(r"\boxed{}", 0.0),
        Example("$~$", 0.0, note="any form of white space is empty"),
        Example(r"$\quad\hspace{1em}$", 0.0),
        Example(r"$\text{}$", 0.0),
        Example(r"\boxed{\phantom{72}}", 0.0),
        Example("$\u200b$", 0.0),
        Example(r"\boxed{72", 0.0, note="not closed"),
        Example(r"$5\$", 0.0, note="an escaped dollar does not close it"),
        Example("$72$$", 0.0),
        Example("", 0.0),
    )

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1 or 0."""
        inside = _inside(text.strip())
        if inside is None:
            return Score(0.0, "not one LaTeX expression")
        return Score(0.0, "the expression is empty") if _NOTHING.fullmatch(without_invisible(inside)) else 1.0


def _inside(text: str) -> str | None:
    """The content of the expression if the whole text is one expression; else None."""
    tokens = _TOKEN.finditer(text)
    opening = next(tokens, None)
    if opening is None or opening.start() > 0:
        return None
    depth = 1
    for token in tokens:
        depth += _step(opening, token)
        if depth < 1:
            return text[opening.end() : token.start()] if depth == 0 and token.end() == len(text) else None
    return None


def _step(opening: re.Match[str], token: re.Match[str]) -> int:
    """How a token changes the depth inside the expression; -2 if it is not allowed there."""
    mark = token.group()
    if opening["edge"] == "begin":
        if token["name"] != opening["name"]:
            return 0
        return 1 if token["edge"] == "begin" else -1
    if opening["box"]:
        return 1 if token["box"] or mark == "{" else -1 if mark == "}" else 0
    closing = _CLOSING.get(opening.group())
    if closing is None or mark == opening.group() != closing:
        return -2
    if closing.startswith("$"):
        return (-1 if mark == closing else -2) if mark.startswith("$") else 0
    return -1 if mark == closing else 0
