"""Which variables a chat template takes from a config, and what is said of one that is not valid Jinja."""

import pytest

from posttrain.config.jinja_source import require_syntax, variables_of


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{{ messages }}{{ tools }}{{ bos_token }}{% if add_generation_prompt %}{% endif %}", []),
        ("{% if enable_thinking %}{{ date }}{% endif %}", ["date", "enable_thinking"]),
        ("{% for m in messages %}{{ m.role }}{{ loop.index }}{% set x = 1 %}{{ x }}{% endfor %}", []),
        ("{% if messages %}{% set x = 1 %}{% endif %}{{ x }}", []),
        ("{% if x is not defined %}{% set x = 1 %}{% endif %}{{ x }}", ["x"]),
        ("{% set x = x | default(1) %}{{ x }}", ["x"]),
        ("{% macro f(y) %}{{ y }}{% endmacro %}{{ f(z) }}{{ raise_exception('no') }}{{ namespace(a=1) }}", ["z"]),
        ("{%- generation -%}{{ x }}{% endgeneration %}{% break %}", ["x"]),
    ],
)
def test_variables_are_the_names_that_a_template_neither_sets_nor_always_gets(template, names):
    assert variables_of(template.replace("{% break %}", "{% for m in x %}{% break %}{% endfor %}")) == names


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ a }", "line 1: unexpected '}'"),
        ("\n{% for m in messages %}{{ m }}", "line 2: Unexpected end of template"),
        ("{% generation %}{{ a }}", "line 1: Unexpected end of template"),
        ("{{ a | nothing }}{% endif %}", "line 1: Encountered unknown tag 'endif'"),
    ],
)
def test_wrong_syntax_is_told_with_its_line(template, told):
    with pytest.raises(ValueError, match=f"^mine.jinja is not valid Jinja: {told}"):
        require_syntax(template, "mine.jinja")
