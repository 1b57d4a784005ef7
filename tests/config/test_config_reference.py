"""Rendering the config reference pages."""

import json
from typing import Any, Literal

import pytest
from config_reference import render_keys, render_reference, sections, undocumented_fields, words
from pydantic import Field, TypeAdapter
from sample_config import Grader, Sample, Stage

from posttrain.config.schema import json_schema, schema_of
from posttrain.config.strict import ConfigPath, StrictModel


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


def test_of_two_equal_headings_on_a_page_the_second_has_a_link_target_of_its_own():
    first = render_reference("The page", Outer)
    second = render_reference("Another", Outer, page=first)
    assert "| `inner` | [section](#inner-1) |" in second
    assert second.count("## inner") == 1
    assert "(#inner-1)" in render_reference("Another", Outer, page="# Inner\n")
    assert "(#inner)" in render_reference("Another", Outer, page="no heading: # inner\n")


def test_sections_that_are_described_elsewhere_are_left_out_and_linked():
    page = render_reference("Sample", Sample, elsewhere={"graders.N": "[graders](graders.md)"})
    assert "| `graders` | list of [graders](graders.md) | `[]` |" in page
    assert "## graders" not in page
    assert "(#graders" not in page


def test_what_stands_in_both_places_is_described_where_it_is_not_left_out():
    page = render_reference("The page", Outer, elsewhere={"inner": "there"})
    assert "## many.N" in page
    assert "The same keys at" not in page
    assert "| `inner` | [section](#manyn) |" in page


def test_the_keys_of_one_section_can_be_had_alone():
    assert render_keys(Outer, without=("plain", "mode")).splitlines() == [
        "| key | type | default | meaning |",
        "|---|---|---|---|",
        "| `inner` | a section | see there | Inside \\| outside. |",
        "| `many` | list of sections | required | Several. |",
    ]


def test_a_default_of_several_lines_does_not_break_the_table():
    class Letter(StrictModel):
        """A letter."""

        text: str = "Dear all,\nbye"
        """What it says."""

    assert "| `text` | text | several lines | What it says. |" in render_keys(Letter)


def test_sections_are_found_at_every_place():
    assert [(section.name, section.places) for section in sections(schema_of(Sample))] == [
        ("", [""]),
        ("Training", ["training"]),
        ("Stage", ["stages.N"]),
        ("MathGrader", ["graders.N (type: math)", "graders.N (type: length).math"]),
        ("LengthGrader", ["graders.N (type: length)"]),
        ("Server", ["server"]),
    ]


class Tree(StrictModel):
    """Holds itself."""

    by_name: dict[str, "Tree"] = Field(default_factory=dict)


def test_a_section_that_holds_itself_is_found_once():
    assert [(section.name, section.places) for section in sections(schema_of(Tree))] == [("Tree", ["", "by_name.NAME"])]
    assert json.loads(json_schema(Tree))["title"] == "Tree"


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        (int, "integer"),
        (float | None, "number or null"),
        (bool, "true or false"),
        (str, "text"),
        (ConfigPath, "path"),
        (list[ConfigPath], "list of path"),
        (list[Stage], "list of sections"),
        (Stage | None, "a section or null"),
        (Grader, "a section with type: math or a section with type: length"),
        (dict[str, int], "mapping of names to integer"),
        (dict[str, Any], "mapping"),
        (list, "list"),
        (Any, "anything"),
        (None, "null"),
        (tuple[int, str], "list of exactly: integer, text"),
    ],
)
def test_a_type_is_named_in_plain_words(kind: Any, want: str):
    schema = TypeAdapter(kind).json_schema()

    def link(name: str, label: str) -> str:
        return f"a section with {label}" if label else "a section"

    assert words(schema, schema, link) == want
