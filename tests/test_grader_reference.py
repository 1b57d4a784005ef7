"""The catalogue of graders shows every grader, parameter and example, and makes invisible characters visible."""

import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest

from posttrain.dataserver.graders.base import Example, Grader
from posttrain.dataserver.graders.catalogue import built_in_graders
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags

ROOT = Path(__file__).parent.parent
reference = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "grader_reference.py")))
PAGE = reference.render_catalogue()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]


class Shown(Grader):
    """One | two.

    More of it.
    """

    type: Literal["shown", "showed"] = "shown"

    size: int = 1
    """How big."""

    needs_gold: ClassVar[bool] = True
    needs_tags: ClassVar[bool] = True

    def score(self, item: GradeInput) -> float:
        return 1.0


def line(completion: str, score: float | None = 1.0, **keys: Any) -> str:
    *_, row = reference._examples([Example(completion, score, **keys)])
    return row


def test_every_grader_has_its_section_and_all_its_names() -> None:
    for name, grader in built_in_graders().items():
        first = next(known for known, other in built_in_graders().items() if other is grader)
        section = PAGE.split(f"\n## {first}\n")[1].split("\n## ")[0]
        assert first == name or f"`{name}`" in section.split("Also called ")[1].splitlines()[0]
        for field in set(grader.model_fields) - {"type", "import_"}:
            assert f"| `{field}` |" in section, f"{name}.{field}"
        assert section.count("\n| ") - section.count("| key |") - section.count("| completion |") == (
            len(grader.model_fields) - 1 + len(grader.examples)
        )


def test_every_row_of_every_table_has_four_cells() -> None:
    for row in ROWS:
        assert len(re.findall(r"(?<!\\)\|", row)) == 5, row


def test_a_section_tells_what_the_grader_needs() -> None:
    section = reference._section(Shown, ["shown", "showed"])
    assert section.splitlines()[:9] == [
        "## shown",
        "",
        "Also called `showed`.",
        "",
        "One | two.",
        "",
        "More of it.",
        "",
        "It needs a gold answer in every row and the section `reasoning` of the data set.",
    ]
    assert "| `size` | integer | `1` | How big. |" in section


@pytest.mark.parametrize(
    ("completion", "cell"),
    [
        ("72", "`72`"),
        ("", "(empty)"),
        (" a\tb\n", "`␣a⇥b⏎`"),
        ("   ", "`␣␣␣`"),
        ("a  b", "`a  b`"),
        ("a|b", r"`a\|b`"),
        ("a\r\nb", "`a␍⏎b`"),
        ("\x00\u200b", r"`\x00\u200b`"),
        ("```py\n1\n```", "```` ```py⏎1⏎``` ````"),
        ("a`b", "``a`b``"),
        ("x" * 200, f"`{'x' * 120}… (200 characters)`"),
    ],
)
def test_a_completion_is_shown_with_all_that_is_in_it(completion: str, cell: str) -> None:
    assert line(completion) == f"| {cell} | 1 | | |"


@pytest.mark.parametrize(
    ("keys", "cells"),
    [
        ({"gold": "72"}, "| gold `72` | |"),
        ({"gold": 72, "note": "why"}, "| gold `72` | why |"),
        ({"params": {"size": 2, "kind": "a"}}, "| `size`: `2`, `kind`: `a` | |"),
        ({"tags": ReasoningTags(opened_in_prompt=True)}, "| tags `<think>` `</think>`, opened in the prompt | |"),
        ({"record": {"a": [1]}}, '| row `{"a": [1]}` | |'),
        ({"completion_tokens": 7, "truncated": True}, "| 7 tokens, cut off | |"),
        ({"prompt": "why?"}, "| asked `why?` | |"),
    ],
)
def test_what_differs_from_the_usual_is_told(keys: Mapping[str, Any], cells: str) -> None:
    assert line("x", **keys) == f"| `x` | 1 {cells}"


def test_a_score_is_a_number_or_none() -> None:
    assert [line("x", score).split(" | ")[1] for score in (1.0, 0.0, 0.375, 2 / 3, None)] == [
        "1",
        "0",
        "0.375",
        "0.667",
        "abstains",
    ]
