"""reasoning-gym items, scored by their own data sets: all or nothing by default, and never run as code."""

import os
from pathlib import Path
from typing import Any

import pytest

from posttrain.dataserver.data.dataset_rows import ProceduralRows
from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.reasoning_gym import ReasoningGym, is_harmless
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

# Data sets whose scorers pass the answer to eval, or to a parser that does.
EVALUATING = (
    *("binary_matrix", "countdown", "intermediate_integration", "n_queens"),
    *("simple_integration", "spiral_matrix", "string_insertion"),
)


def grade(answer: str, record: dict[str, Any], **params: Any) -> float:
    grader = ReasoningGym(**params)
    item = GradeInput(answer, answer, record=record)
    grader.check_row(item)
    given = grader.score(item)
    return given.value if isinstance(given, Score) else given


def item(name: str, index: int = 1, **config: Any) -> dict[str, Any]:
    return ProceduralRows(name, 3, config).read(index).record


@pytest.mark.parametrize("name", ["leg_counting", "arc_agi", "knights_knaves", "list_functions", *EVALUATING])
def test_the_right_answer_of_an_item_gets_a_full_score(name: str) -> None:
    record = item(name)

    assert grade(record["answer"], record) == 1.0
    assert grade("", record) == 0.0
    assert grade("I do not know.", record) == 0.0


def test_any_right_answer_counts_where_there_are_many() -> None:
    record = item("countdown")
    target, numbers = record["entry"]["metadata"]["target"], record["entry"]["metadata"]["numbers"]
    turned = f"0 + ({record['answer']})"

    assert grade(f"({record['answer']})", record) == 1.0
    assert grade(turned, record) == 0.0, "0 is none of the numbers"
    assert grade(str(target), record) == 0.0, f"{numbers} must be used"


def test_listing_answers_earns_a_part_only_where_parts_count() -> None:
    record = item("leg_counting")
    listed = " ".join([record["answer"], "1", "2", "3"])

    assert grade(listed, record) == 0.0
    assert 0 < grade(listed, record, exact=False) < 1


def test_the_config_of_the_item_is_the_config_of_its_scorer() -> None:
    record = item("leg_counting", max_animals=4)

    assert grade(record["answer"], record) == 1.0
    with pytest.raises(DataError, match="no parameter 'legs'"):
        grade("1", {**record, "reasoning_gym": {**record["reasoning_gym"], "config": {"legs": 1}}})


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_is_never_run(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    attacks = [
        f"__import__('os').mkdir({str(mark)!r})",
        f"[__import__('os').mkdir({str(mark)!r})]",
        f"[].__class__.__base__.__subclasses__()[0].__init__.__globals__['os'].mkdir({str(mark)!r})",
        f"open({str(mark)!r}, 'w')",
        f"{{open({str(mark)!r}, 'w')}}",
        f"f'{{open({str(mark)!r}, chr(119))}}'",
        f"(lambda: open({str(mark)!r}, 'w'))()",
        f"ｏｐｅｎ({str(mark)!r}, 'w')",
    ]

    assert [grade(attack, item(name)) for attack in attacks] == [0.0] * len(attacks)
    assert not os.path.lexists(mark)


def test_the_attacks_would_run_without_the_check(tmp_path: Path) -> None:
    from posttrain.dataserver.data.procedural import from_json, make_dataset

    mark = tmp_path / "ran"
    attack = f"__import__('os').mkdir({str(mark)!r})"
    make_dataset("n_queens", {}).score_answer(attack, from_json(item("n_queens")["entry"]))

    assert mark.is_dir()


@pytest.mark.parametrize(
    "answer", ["9**9**9", "x**9**9", "(9**9)**9", "2**99999", "2**(99999)", "2** 9999", "9" * 3000]
)
def test_a_giant_number_is_not_computed(answer: str) -> None:
    assert not is_harmless(answer, "countdown")
    assert not is_harmless(answer, "simple_integration")


@pytest.mark.parametrize("answer", ["nan", "[NaN]", "x = nan", "nan+nanj", "-inf", "Infinity", "1e99999", "1E-99999"])
def test_a_number_that_is_not_finite_is_shown_to_no_scorer_but_where_it_is_the_right_answer(answer: str) -> None:
    assert not is_harmless(answer, "leg_counting", right="7")
    assert is_harmless(answer, "spell_backward", right="nan")


@pytest.mark.parametrize("answer", ["banana", "information", "in f", "1e99", "0x2e11a"])
def test_words_and_numbers_that_only_look_like_it_are_shown(answer: str) -> None:
    assert is_harmless(answer, "spell_backward", right="7")


@pytest.mark.parametrize(
    "answer", ["x**2*y**3 + C", "-9*X**10 - 5*X**9/4", "3*exp(-x)*sin(2*x)/5 + C", "sqrt(1 - 4*x**2)"]
)
def test_usual_terms_are_shown_to_the_scorer(answer: str) -> None:
    assert is_harmless(answer, "simple_integration")


@pytest.mark.parametrize("answer", ["Integral(x, x)", "x.diff", "eval(x)", "S('x')", "x[0]", "x; y", "__x__"])
def test_other_terms_are_not(answer: str) -> None:
    assert not is_harmless(answer, "simple_integration")


def test_an_integral_is_not_its_own_solution() -> None:
    record = item("simple_integration")
    metadata = record["entry"]["metadata"]

    assert grade(f"Integral({metadata['integrand']}, {metadata['variable']})", record) == 0.0


def test_an_answer_that_a_scorer_stumbles_over_is_wrong() -> None:
    given = ReasoningGym().score(GradeInput("[", "[", record=item("prime_factorization")))

    assert given == Score(0.0, "the scorer cannot read it (ValueError)")


def test_part_of_the_answer_can_be_taken() -> None:
    record = item("leg_counting")

    assert grade(f"So the answer: {record['answer']}", record, extract={"after": "answer:"}) == 1.0
    assert grade(record["answer"], record, extract={"after": "answer:"}) == 0.0


@pytest.mark.parametrize(
    "record",
    [{}, {"reasoning_gym": {}}, {"reasoning_gym": {"dataset": "leg_counting"}}, {"reasoning_gym": 1, "entry": {}}],
)
def test_a_row_from_elsewhere_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="not an item of reasoning-gym"):
        ReasoningGym().check_row(GradeInput("", None, record=record))


def test_an_item_whose_answer_its_scorer_refuses_is_refused() -> None:
    record = item("leg_counting")
    record["entry"] = {**record["entry"], "answer": ""}

    with pytest.raises(DataError, match="full score"):
        ReasoningGym().check_row(GradeInput("", None, record=record))
