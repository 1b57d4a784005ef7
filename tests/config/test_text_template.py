"""Texts built from columns by a template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.text_template import fill_template, template_fields

NAMES = st.from_regex(r"[A-Za-z_ -]{1,8}", fullmatch=True)


@given(st.lists(st.tuples(st.text(max_size=8), NAMES), min_size=1, max_size=4), st.text(max_size=8), st.data())
def test_a_filled_template_is_its_texts_with_the_values_between_them(parts, end, data):
    row = {name: data.draw(st.text(max_size=8)) for _, name in parts}
    escaped = [text.replace("{", "{{").replace("}", "}}") for text in [*(text for text, _ in parts), end]]
    template = "".join(f"{text}{{{name}}}" for text, (_, name) in zip(escaped, parts, strict=False)) + escaped[-1]
    assert set(template_fields(template)) == row.keys()
    assert fill_template(template, row) == "".join(text + row[name] for text, name in parts) + end


def test_a_plain_name_is_no_template():
    assert template_fields("question") == template_fields("a}") == ()


@pytest.mark.parametrize("template", ["{", "{a", "{}", "{a!r}", "{a:>3}", "{{}}", "{a} }"])
def test_a_template_that_is_none_is_refused(template):
    with pytest.raises(ValueError, match="is not a template"):
        template_fields(template)
