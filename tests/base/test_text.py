"""Making text safe and short enough for a message."""

from posttrain.base.text import first_line, first_of, one_line


def test_five_names_are_enough():
    assert first_of(["a", "b"]) == "a, b"
    assert first_of(list("abcdef")) == "a, b, c, d, e and 1 more"


def test_a_text_is_cut_and_steers_no_terminal():
    assert one_line("a\n b\x1b[2J", 20) == "a b\ufffd[2J"
    assert one_line("abcdef", 3) == "abc..."


def test_an_error_that_says_nothing_is_told_by_its_type():
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
