"""Rows that reasoning-gym makes: each depends on the seed and its number alone."""

from typing import Any

import pytest

from posttrain.dataserver.config.datasets import ReasoningGymDataset
from posttrain.dataserver.data.procedural_rows import ProceduralRows
from posttrain.errors import ConfigError


def legs(seed: int = 0, **keys: Any) -> ProceduralRows:
    section = {"type": "reasoning_gym", "task": "leg_counting", "graders": {"string_exact": 1}, "rows": 50, **keys}
    return ProceduralRows(ReasoningGymDataset.model_validate(section), seed)


def test_an_item_is_the_same_whenever_and_in_whatever_order_it_is_made() -> None:
    one, other = legs(), legs()
    forwards = [one.read(index) for index in range(20)]
    backwards = [other.read(index) for index in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert one.digest == other.digest
    assert len({row.digest for row in forwards}) == 20


def test_an_item_has_a_question_and_its_answer() -> None:
    row = legs().read(7)
    assert (row.index, row.key) == (7, "7")
    assert "how many legs" in row.record["question"].lower()
    assert row.record["answer"].isdigit()
    assert legs().place(7) == "leg_counting item 7"


def test_an_item_is_found_by_its_number_and_by_nothing_else() -> None:
    rows = legs()
    assert [rows.find(key) for key in ("0", "49")] == [0, 49]
    assert [rows.find(key) for key in ("50", "-1", "07", "", "x", "9" * 40)] == [None] * 6


@pytest.mark.parametrize("change", [{"seed": 1}, {"rows": 51}, {"params": {"max_animals": 3}}, {"task": "chain_sum"}])
def test_what_changes_the_items_changes_the_digest(change: dict[str, Any]) -> None:
    assert legs(**change).digest != legs().digest


def test_neighbouring_seeds_have_no_items_in_common() -> None:
    one, other = ({rows.read(index).record["question"] for index in range(50)} for rows in (legs(0), legs(1)))
    assert not one & other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "leg_countin"}, "did you mean 'leg_counting'?"),
        ({"params": {"animals": 3}}, "leg_counting has no parameter 'animals'; it has max_animals, "),
        ({"params": {"seed": 3}}, "leg_counting has no parameter 'seed'"),
        ({"params": {"min_animals": 0}}, "leg_counting refuses its parameters"),
        ({"task": "word_ladder"}, "cannot be used"),
    ],
)
def test_what_the_library_does_not_have_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        legs(**change)
    assert message in str(error.value)


def test_no_two_items_are_taken_for_the_same() -> None:
    assert list(legs().contents()) == list(range(50))
