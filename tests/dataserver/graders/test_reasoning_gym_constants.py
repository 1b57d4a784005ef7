"""No served reasoning-gym data set rewards a constant text, or the right answer in second place."""

from pathlib import Path
from typing import Any

import pytest

from posttrain.dataserver.data.dataset_rows import ProceduralRows
from posttrain.dataserver.data.procedural import REFUSED, load_library
from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.reasoning_gym import ReasoningGym
from posttrain.dataserver.graders.text.completions import GradeInput

SERVED = sorted(set(load_library().factory.DATASETS) - set(REFUSED))

NUMBERS = "0 1 2 3 4 5 6 7 8 9 10 12 24 25 50 100 -1 0.0 0.5 1.0 1/2 1/3 0,0 1,1 0:00 0% 1e-999 1e999 -1e999 1/0 9**9"
NOT_FINITE = "nan NaN nanj nan+nanj nan,nan (nan,nan) [NaN] {nan} x=nan nan/nan inf -inf infj Infinity inf-inf"
WORDS = "True False yes no None null N/A unknown impossible the answer left up north hello heads red blue Monday C"
SIGNS = "A B a x y i j 1j 0j 1+0j 1+2j x=0 [] {} () [0] [[]] [[0]] {'a':1} \"\" . , - + * / ? # $ < > = _ ( ) ~ | \\"
TEXTS = ("0 0", "0 1 2 3 4 5 6 7 8 9", "abcdefghijklmnopqrstuvwxyz", "True False", "A B C D", "\u200b", r"\boxed{0}")
CONSTANTS = (*NUMBERS.split(), *NOT_FINITE.split(), *WORDS.split(), *SIGNS.split(), *TEXTS)

# A constant may be right by chance on some of eight items: six sevenths of `circuit_logic`'s answers are 0.
_BY_CHANCE = 0.5

# Two answers in a row are one longer game, which is right if it ends right.
_GAMES = {"sokoban"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `codeio` generates its items by running programs, some of which write files.
    monkeypatch.chdir(tmp_path)


def items_of(name: str, count: int) -> list[dict[str, Any]]:
    items = ProceduralRows(name, 5, {})
    return [items.read(index).record for index in range(count)]


def score(text: str, record: dict[str, Any]) -> float:
    given = ReasoningGym().score(GradeInput(text, text, record=record))
    return given.value if isinstance(given, Score) else given


def undeserved(constant: str, records: list[dict[str, Any]]) -> float:
    """The mean score of a text over all items, with 0 where it is the item's own answer."""
    paid = [score(constant, record) for record in records if str(record["answer"]).strip() != constant]
    return sum(paid) / len(records)


@pytest.mark.parametrize("name", SERVED)
def test_no_constant_pays(name: str) -> None:
    records = items_of(name, 8)

    assert len(CONSTANTS) > 100
    assert {text: paid for text in CONSTANTS if (paid := undeserved(text, records)) >= _BY_CHANCE} == {}


@pytest.mark.parametrize("name", [name for name in SERVED if name not in _GAMES])
def test_the_own_answer_pays_and_of_two_candidates_at_most_the_first(name: str) -> None:
    records = [record for record in items_of(name, 6) if isinstance(record["answer"], str)]

    for record in records:
        right = record["answer"]
        wrong = next((other["answer"] for other in records if score(other["answer"], record) < 1), "17")
        assert score(right, record) == 1.0
        assert [score(f"{wrong}{between}{right}", record) for between in (", ", "\n", " or ")] == [0.0] * 3, wrong


@pytest.mark.long
@pytest.mark.parametrize("name", SERVED)
def test_no_constant_pays_on_many_items(name: str) -> None:
    records = items_of(name, 20)
    letters = [chr(code) for code in range(33, 127)]
    whole = [str(number) for number in range(-9, 100)]
    constants = dict.fromkeys((*CONSTANTS, *letters, *whole))

    assert {text: paid for text in constants if (paid := undeserved(text, records)) >= 0.3} == {}
