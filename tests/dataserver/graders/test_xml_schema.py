import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.xml_schema import Element, XmlSchema, XmlShape, outline
from posttrain.errors import DataError


def score(grader: XmlSchema, text: str) -> Score:
    given = grader.score(GradeInput(text, text))
    assert isinstance(given, Score)
    return given


def test_names_are_compared_with_their_namespace() -> None:
    grader = XmlSchema(inline=XmlShape(root="{urn:a}note", required_children=("{urn:a}to",)))

    assert score(grader, '<note xmlns="urn:a"><to>x</to></note>').value == 1
    assert score(grader, '<n:note xmlns:n="urn:a"><n:to>x</n:to></n:note>').value == 1
    assert score(grader, "<note><to>x</to></note>") == Score(0.0, "the root is note")


def test_what_is_missing_is_named() -> None:
    grader = XmlSchema(
        inline=XmlShape(root="a", required_children=("b", "c"), required_attributes=("d", "e")), partial=0.8
    )

    # b and e are present: two of four.
    assert score(grader, '<a e=""><b>1</b><c> </c></a>') == Score(0.4, "missing or empty: <c>, d")


def test_a_second_child_may_fill_what_the_first_one_left_empty() -> None:
    grader = XmlSchema(inline=XmlShape(root="a", required_children=("b",)))

    assert score(grader, "<a><b/><b>1</b></a>").value == 1
    assert score(grader, "<a><b/><c>1</c></a>").value == 0


def test_the_root_is_looked_at_before_the_rest() -> None:
    assert score(XmlSchema(inline=XmlShape(root="a"), partial=0.9), "<b><a>1</a></b>") == Score(0.0, "the root is b")


def test_deep_and_closed_nesting_is_fine() -> None:
    text = "<a>" * 100_000 + "x" + "</a>" * 100_000

    assert score(XmlSchema(inline=XmlShape(root="a")), text).value == 1


def test_exactly_one_place_for_the_shape() -> None:
    for params in ({}, {"inline": {"root": "a"}, "column": "shape"}):
        with pytest.raises(ValidationError, match="give the shape as inline, or the name of the column"):
            XmlSchema.model_validate(params)


def test_a_row_without_a_usable_shape_is_refused_before_the_start() -> None:
    grader = XmlSchema(column="shape")

    for shape, reason in [
        (None, "shape"),
        ("{", "the shape of the XML is not JSON"),
        ({"root": "a", "childs": []}, r"shape\.childs"),
        ({"root": "a b"}, r"shape\.root"),
        (7, "the shape of the XML is not usable"),
    ]:
        with pytest.raises(DataError, match=reason):
            grader.check_row(GradeInput("", None, record={"shape": shape}))
    grader.check_row(GradeInput("", None, record={"shape": {"root": "a"}}))


def test_the_root_and_what_is_right_below_it_are_kept() -> None:
    found = outline('<?xml version="1.0"?><a x="1"><b/><!-- c --><d><e/></d> <f y="2"></f><g> z </g></a>')

    assert found.root == Element("a", frozenset({"x"}), is_empty=False)
    assert [(child.name, child.is_empty) for child in found.children] == [
        ("b", True),
        ("d", False),
        ("f", False),
        ("g", False),
    ]


def test_text_between_children_fills_the_root_alone() -> None:
    found = outline("<a><b></b>text</a>")

    assert found.root is not None
    assert not found.root.is_empty
    assert found.children[0].is_empty


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not XML"),
        ("a", "not XML"),
        ("<a>", "not XML"),
        ("<a></b>", "not XML"),
        ("<a/><a/>", "not XML"),
        ("<a>&nbsp;</a>", "not XML"),
        ("<a>\0</a>", "not XML"),
        ("<a>\ud800</a>", "surrogate"),
        ("<!DOCTYPE a><a/>", "not allowed"),
        ('<!DOCTYPE a SYSTEM "file:///etc/hostname"><a/>', "not allowed"),
        ('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><a>&b;</a>', "not allowed"),
        ('<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><a>&d;</a>', "not allowed"),
    ],
)
def test_what_is_no_plain_xml_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        outline(text)


def test_an_encoding_that_the_text_claims_is_passed_over() -> None:
    assert outline('<?xml version="1.0" encoding="utf-16"?><é>1</é>').root is not None
