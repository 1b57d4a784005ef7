"""The variables of training as defaults in the template that is saved with the weights."""

import json

from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from posttrain.config.jinja_source import variables_of
from posttrain.conversation.saved_template import with_defaults, without_defaults

NAMES = st.from_regex(r"x_[a-z]{1,5}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def rendered(template, **variables):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, sort_keys=True)
    return environment.from_string(template).render(variables)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), NAMES, VALUES)
def test_a_template_with_defaults_writes_what_it_writes_with_these_variables(variables, name, value):
    template = "  {{ [" + ", ".join(sorted({*variables, name})) + "] | tojson }}\n"
    given_all = {name: value, **variables}
    saved = with_defaults(template, variables)
    assert rendered(saved, **{name: value}) == rendered(template, **{**variables, name: value})
    assert rendered(with_defaults(template, given_all)) == rendered(template, **given_all)
    assert without_defaults(saved)[1] == template
    assert "".join(without_defaults(saved)) == saved
    assert variables_of(saved) == variables_of(template)


def test_defaults_of_an_earlier_training_are_replaced():
    earlier = with_defaults("{{ mood }}", {"mood": "good", "other": 1})
    assert rendered(earlier) == "good"
    assert with_defaults(earlier, {"mood": "better"}) == with_defaults("{{ mood }}", {"mood": "better"})
