"""The reference page."""

from typing import Literal

import pytest
from pydantic import Field
from sample_config import Sample

from toolkit.core.config.reference import render_reference, undocumented_fields
from toolkit.core.config.strict import StrictModel


class Inner(StrictModel):
    """Inside | outside."""

    size: int = Field(default=1, ge=1, lt=9)
    """How `a|b` big."""


class Outer(StrictModel):
    """All of
    it."""

    inner: Inner = Inner()
    """Inside | outside."""

    many: list[Inner]
    """Several."""

    mode: Literal["a", "b"] | None = None
    """Which."""

    plain: str = ""


PAGE = """\
# The page

All of it.

| key | type | default | meaning |
|---|---|---|---|
| `inner` | [section](#inner) | see there | Inside \\| outside. |
| `many` | list of [section](#inner) | required | Several. |
| `mode` | one of: a, b; or null | `null` | Which. |
| `plain` | text | `""` |  |

## inner

Inside | outside.

The same keys at `many.N`.

| key | type | default | meaning |
|---|---|---|---|
| `size` | integer ≥ 1 and < 9 | `1` | How `a\\|b` big. |
"""


def test_the_page_has_a_table_for_each_section():
    assert render_reference("The page", Outer) == PAGE


@pytest.mark.parametrize(
    "line",
    [
        "## graders.N (type: math)",
        "| `graders` | list of [type: math](#gradersn-type-math) or [type: length](#gradersn-type-length) | `[]` |",
        "| `targets` | one of: auto, all; or list of text | `auto` | Names, or a rule for them. |",
        "| `runs` | path | `runs` | A folder. |",
        "| `mix` | mapping of names to number | `{}` | Weights. |",
    ],
)
def test_unions_are_shown_as_alternatives(line: str):
    assert line in render_reference("Sample", Sample)


def test_a_field_without_a_sentence_is_found_at_any_depth():
    class Deep(StrictModel):
        """Holds others."""

        outer: dict[str, Outer | None] = Field(default_factory=dict)

    assert undocumented_fields(Deep) == ["Deep.outer", "Outer.plain"]
    assert undocumented_fields(Sample) == []
