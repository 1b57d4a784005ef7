import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.choice import Choice
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError


def chosen(text: str, grader: Choice | None = None, labels: str = "ABCD") -> str:
    """The labels for which this text is graded right."""
    grader = grader or Choice()
    scores = {label: grader.score(GradeInput(completion=text, answer=text, gold=label)) for label in labels}
    return "".join(label for label, score in scores.items() if isinstance(score, Score) and score.value == 1)


@pytest.mark.parametrize(
    "text",
    [
        "The correct answer is option (C).",
        "Final answer: **C**",
        "Answer:\n\nC",
        "The answer is $\\boxed{\\mathrm{C}}$",
        "The answer is C, because A is wrong",
        "Answer: 'C'",
        "I would pick **C. Oslo**",
        "Option A is wrong. Answer: C",
        "> C",
        "`C`",
        "C:\r\n",
        "C. A dog is not it",
        "Choice C.",
        "Answer: (C) because (A) is wrong\n\\boxed{C}",
        "(A) is wrong, (B) is not it: (C)",
        "The answer is C, not A",
        "The correct option is C.",
        "The correct choice is: **C**",
        "My choice is C",
        "The right one is (C).",
        "I choose C.",
        "I'd go with option C, I think.",
        "We select C",
        "I would pick C",
        "C is correct",
        "**C** is the correct answer.",
        "C is the right option, since A is in France",
        "The answer must be C",
        "The answer is C; A, B and D are wrong.",
        "A, B and D are incorrect. C is correct.",
        "answer is A? No, it is C",
        "The answer is A?\nNo, it's C.",
        "Answer: A. Wait, it must be C",
        "The answer is not A but C.",
        "A is correct about Paris, yet the answer is C",
    ],
)
def test_a_letter_that_is_written_as_an_answer_is_chosen(text: str) -> None:
    assert chosen(text) == "C"


@pytest.mark.parametrize(
    "text",
    [
        "A-level",
        "A's",
        "Vitamin A",
        "The answer is not B",
        "The answer is either A or B",
        "The answer isn't B",
        "The answer can't be the option (B)",
        "**B** is not right",
        "(B) is incorrect",
        "\\boxed{B} is wrong",
        "Answer: B. No, wait: A",
        "answer is A? No.",
        "The answer is A... no, wait",
        "A is correct. B is correct.",
        "A and B are correct",
        "The incorrect option is A",
        "Which one is A?",
        "I do not choose A",
        "I would not pick A.",
        "A is right-handed",
        "Is A correct?",
        "A isn't correct",
        "It is not A",
        "It is A or B",
        "A, B, C and D are wrong",
        "Answer: A/B",
        "Answer: (A) and (B)",
        "Answer: A. B. C. D.",
        "\\boxed{A} \\boxed{B}",
        "A\nB\nC\nD",
        "**A** **B**",
        "Ａ",
        "В",  # Cyrillic
        "\0",
        "\ud800",
    ],
)
def test_other_letters_are_not(text: str) -> None:
    assert chosen(text) == ""


def test_a_box_counts_before_an_answer_in_words_and_that_before_marks() -> None:
    assert chosen("(A) Answer: B \\boxed{C}") == "C"
    assert chosen("(A) Answer: B \\boxed{42}") == "B"
    assert chosen("(A) no answer \\boxed{42}") == "A"


def test_labels_may_be_longer_than_a_letter() -> None:
    grader = Choice(choices=("A", "A1", "B2"))

    assert grader.score(GradeInput("Answer: A1", "Answer: A1", gold="A1")) == Score(1.0, "A1 written as an answer")
    assert grader.score(GradeInput("Answer: A1", "Answer: A1", gold="A")) == Score(0.0, "A1 written as an answer")


def test_with_case_ignored_a_gold_may_be_small_too() -> None:
    grader = Choice(ignore_case=True)

    assert grader.score(GradeInput("(B)", "(B)", gold="b")) == Score(1.0, "b written as an answer")


def test_choices_that_cannot_be_told_apart_are_refused() -> None:
    for choices in ("AA", "Aa", "A", "A-", ("A", "")):
        with pytest.raises(ValidationError):
            Choice(choices=choices)


def test_a_gold_that_is_no_choice_is_refused_before_the_start() -> None:
    with pytest.raises(DataError, match="'E' is not one of the choices A, B, C, D"):
        Choice().check_row(GradeInput("", None, gold="E"))
