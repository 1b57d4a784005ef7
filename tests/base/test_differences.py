"""Differences between two nested mappings."""

from posttrain.runs.manifest import differences, flatten


def test_nothing_differs_between_equal_mappings():
    assert differences({"a": {"b": [1, {"c": None}]}}, {"a": {"b": [1, {"c": None}]}}) == []


def test_each_difference_is_one_line_with_its_full_key():
    old = {"training": {"seed": 0, "rows_per_step": 16}, "lora": {"r": 16}, "tokenizer": "abc", "gone": 1}
    new = {"training": {"seed": 1, "rows_per_step": 16}, "lora": {"r": 8}, "tokenizer": "abd", "added": [2]}
    assert differences(old, new) == [
        "added: absent → [2]",
        "gone: 1 → absent",
        "lora.r: 16 → 8",
        "tokenizer: abc → abd",
        "training.seed: 0 → 1",
    ]


def test_a_section_that_became_null_is_told_key_by_key():
    assert differences({"lora": {"r": 16}}, {"lora": None}) == ["lora.r: 16 → absent"]


def test_null_is_the_same_as_absent():
    # So a key that a later version adds with the default null does not prevent a resume.
    assert differences({"a": 1}, {"a": 1, "b": None}) == []


def test_a_list_of_sections_is_told_by_the_one_that_changed():
    stages = [{"name": "one", "until_step": 4}, {"name": "two", "until_step": 8}]
    longer = [stages[0], {"name": "two", "until_step": 9}]
    assert differences({"stages": stages}, {"stages": longer}) == ["stages[1].until_step: 8 → 9"]


def test_nested_values_are_told_by_their_full_keys_and_null_is_absent():
    value = {"a": {"b": [1, 2], "c": None}, "stages": [{"name": "x"}, {"mix": {"d": 1}}]}
    assert flatten(value) == {"a.b": [1, 2], "stages[0].name": "x", "stages[1].mix.d": 1}
