"""Text that is safe and short enough for a message."""

from posttrain.base.text import first_of


def test_five_names_are_enough():
    assert first_of(["a", "b"]) == "a, b"
    assert first_of(list("abcdef")) == "a, b, c, d, e and 1 more"
