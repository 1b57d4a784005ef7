import pytest

from posttrain.dataserver.graders.text.xml_outline import Element, outline
from posttrain.errors import DataError


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
        ("<!DOCTYPE a><a/>", "refused"),
        ('<!DOCTYPE a SYSTEM "file:///etc/hostname"><a/>', "refused"),
        ('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><a>&b;</a>', "refused"),
        ('<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><a>&d;</a>', "refused"),
    ],
)
def test_what_is_no_plain_xml_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        outline(text)


def test_an_encoding_that_the_text_claims_is_passed_over() -> None:
    assert outline('<?xml version="1.0" encoding="utf-16"?><é>1</é>').root is not None
