"""Generated items: the same in every process and order; tasks that cannot be scored fairly are refused."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.config.datasets import ReasoningGymDataset
from posttrain.dataserver.data.dataset_rows import ProceduralRows
from posttrain.dataserver.data.procedural import REFUSED, from_json, make_dataset, to_json
from posttrain.errors import ConfigError

# Integers, tuples, NumPy strings, a NumPy seed, words, expressions.
NAMES = ("leg_counting", "arc_agi", "knights_knaves", "pool_matrix", "list_functions", "countdown")

_BY_HASH = ("isomorphic_strings", "ransom_note")

_PRINT_ITEMS = """
import hashlib, json, sys
from reasoning_gym import create_dataset
from posttrain.dataserver.data.dataset_rows import ProceduralRows
digest = lambda item: hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()
names, refused, indices = (part.split() for part in sys.argv[1:])
items = {name: ProceduralRows(name, 5, {}) for name in names}
found = {f"{name} {index}": digest(items[name].read(int(index)).record) for index in indices for name in names}
found |= {name: digest(create_dataset(name, seed=5)[0]) for name in refused}
print(json.dumps(found))
"""


def items_of_a_process(hash_seed: str, indices: str) -> dict[str, str]:
    arguments = [" ".join(NAMES), " ".join(_BY_HASH), indices]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _PRINT_ITEMS, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def test_items_are_the_same_in_every_process_and_order() -> None:
    one, other = items_of_a_process("1", "0 3 99999"), items_of_a_process("2", "99999 0 3")
    differing = {key.split()[0] for key in one if one[key] != other[key]}

    assert len(one) == 3 * len(NAMES) + len(_BY_HASH)
    assert differing == set(_BY_HASH), "those that are refused because of it"


def test_an_item_says_where_it_comes_from() -> None:
    item = ProceduralRows("leg_counting", 7, {"max_animals": 3}).read(4).record

    assert item["reasoning_gym"] == {"dataset": "leg_counting", "seed": 7, "config": {"max_animals": 3}, "index": 4}
    assert item["entry"]["question"] == item["question"]
    assert item["entry"]["answer"] == item["answer"]


def test_neighbouring_seeds_have_no_items_in_common() -> None:
    first, second = ProceduralRows("chain_sum", 1, {}), ProceduralRows("chain_sum", 2, {})

    assert not {first.read(n).record["question"] for n in range(20)} & {
        second.read(n).record["question"] for n in range(20)
    }


def test_the_config_changes_the_items() -> None:
    items = ProceduralRows("chain_sum", 1, {"min_digits": 5, "max_digits": 5})

    assert all(len(word) == 5 for word in items.read(0).record["question"].split() if word.isdigit())


@pytest.mark.parametrize("name", NAMES)
def test_the_entry_survives_json_whole(name: str) -> None:
    items = ProceduralRows(name, 3, {})
    record = json.loads(json.dumps(items.read(2).record))
    entry = from_json(record["entry"])

    assert to_json(entry) == record["entry"]
    assert make_dataset(name, {}).score_answer(record["answer"], entry) == 1.0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.fractions() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.dictionaries(st.integers() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_json_loses_nothing(value: Any) -> None:
    back = from_json(json.loads(json.dumps(to_json(value))))

    assert back == value
    assert repr(back) == repr(value), "tuples are no lists, and true is not 1"


@pytest.mark.parametrize("index", [-1, 10])
def test_there_are_only_so_many_items(index: int) -> None:
    items = ProceduralRows("chain_sum", 1, {}, size=10)

    assert len(items) == 10
    with pytest.raises(IndexError, match="the last one is 9"):
        items.read(index)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_on_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} of reasoning-gym cannot be used"):
        ProceduralRows(name, 1, {})


def test_the_scorers_that_are_refused_take_wrong_answers() -> None:
    import reasoning_gym

    puzzle, game = (reasoning_gym.create_dataset(name, seed=1) for name in ("puzzle24", "game_of_life_halting"))

    assert [puzzle.score_answer("6*4*1*1", puzzle[index]) for index in range(5)] == [1.0] * 5
    assert [game.score_answer("no idea", game[index]) for index in range(5)] == [1.0] * 5


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("leg_countin", {}, "did you mean 'leg_counting'"),
        ("leg_counting", {"animals": 3}, "no parameter 'animals'; it has .*max_animals"),
        ("leg_counting", {"seed": 3}, "no parameter 'seed'"),
        ("leg_counting", {"size": 3}, "no parameter 'size'"),
        ("leg_counting", {"max_animals": 0}, "rejects its parameters"),
        ("leg_counting", {"max_animals": "three"}, "rejects its parameters"),
    ],
)
def test_a_data_set_that_cannot_be_made_is_told(name: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProceduralRows(name, 1, config)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)

    with pytest.raises(ConfigError, match=r"pip install 'posttrain-toolkit\[reasoning-gym\]'"):
        ProceduralRows("leg_counting", 1, {})


def legs(seed: int = 0, **keys: Any) -> ProceduralRows:
    section = {"type": "reasoning_gym", "task": "leg_counting", "graders": {"string_exact": 1}, "rows": 50, **keys}
    dataset = ReasoningGymDataset.model_validate(section)
    return ProceduralRows(dataset.task, seed, dataset.params, dataset.rows)


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


def test_neighbouring_seeds_of_a_section_have_no_items_in_common() -> None:
    one, other = ({rows.read(index).record["question"] for index in range(50)} for rows in (legs(0), legs(1)))
    assert not one & other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "leg_countin"}, "did you mean 'leg_counting'?"),
        ({"params": {"animals": 3}}, "leg_counting has no parameter 'animals'; it has max_animals, "),
        ({"params": {"seed": 3}}, "leg_counting has no parameter 'seed'"),
        ({"params": {"min_animals": 0}}, "leg_counting rejects its parameters"),
        ({"task": "word_ladder"}, "cannot be used"),
    ],
)
def test_what_the_library_does_not_have_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        legs(**change)
    assert message in str(error.value)


def test_no_two_items_are_taken_for_the_same() -> None:
    assert list(legs().contents()) == list(range(50))
