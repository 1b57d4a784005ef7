"""math_verify: what the table does not show."""

import signal
import threading
from typing import Any

import pytest

from toolkit.dataserver.completions import GradeInput
from toolkit.dataserver.extraction import AfterMarker
from toolkit.dataserver.graders.base import Score
from toolkit.dataserver.graders.math_verify import MathVerify
from toolkit.errors import DataError


def score(answer: str, gold: object, **params: Any) -> float:
    given = MathVerify.model_validate(params).score(GradeInput(answer, answer, gold=gold))
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/3", "0.333333"),
        (r"\sqrt{2}", "1.41421356"),
        ("0.0000001", r"\frac{1}{10000000}"),
        ("1000", "$10^3$"),
        ("A", r"\boxed{\text{(A)}}"),
        ("x=5", "5"),
        ("x<5", "$5 > x$"),
        (r"\{1,2\}", "x is 1 and 2"),
        ("(1,2)", "$(1, 2)$"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"$\begin{pmatrix} 1 \\ 2 \end{pmatrix}$"),
        (r"\infty", r"$\infty$"),
        ("5040", "$7!$"),
        (r"2\frac{1}{2}", "2.5"),
        ("-7", "It is \u22127."),
        (0.5, r"$\frac12$"),
        ("-7", "$x = - 7$"),
        ("110_2", r"\boxed{110_2}"),
        ("7", r"$x \approx 7$"),
        ("$1,080", "1080"),
        ("72 apples", "$72$"),
    ],
)
def test_equal(gold: object, answer: str):
    MathVerify().check_row(GradeInput("", None, gold=gold))

    assert score(answer, gold) == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/3", "0.333"),
        ("0.0000001", r"\frac{2}{10000000}"),
        ("0", "0.0000001"),
        ("7", r"7\pi"),
        ("7", "7x"),
        ("7", r"the answer is \log 7"),
        ("7", r"\boxed{\emptyset}"),
        ("7", r"\boxed{8}, no: \boxed{7}"),
        ("7", r"\boxed{\text{seven}}"),
        ("7", "It is 1.7 × 10^7"),
        ("2", r"\boxed{2, 2.5}"),
        ("x=5", "$y=5$"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"$\begin{pmatrix}1\\3\end{pmatrix}$"),
        ("0", "$1/0$"),
        ("72", "７２"),
        ("a", "а"),  # Cyrillic
    ],
)
def test_not_equal(gold: str, answer: str):
    assert score(answer, gold) == 0.0


@pytest.mark.parametrize(
    ("gold", "answer", "wanted"),
    [
        ("7", r"\boxed{7}", 1.0),
        ("7", r"\boxed{7.0\text{ cm}}", 1.0),
        ("7", r"\boxed{3 + 4 = 7}", 0.0),
        ("7", r"\boxed{|-7|}", 0.0),
        ("1/2", r"\frac{1}{2}", 1.0),
        ("-1/2", r"\frac{-1}{2}", 1.0),
        ("1/2", r"\frac{2}{4}", 0.0),
        ("1/2", "50%", 1.0),
        ("x=5", "x = 5", 1.0),
        ("x=5", "5", 1.0),
        ("x=5", "x = 2 + 3", 0.0),
        (r"2\sqrt{2}", r"2\sqrt{2}", 1.0),
        (r"2\sqrt{2}", r"\sqrt{2}+\sqrt{2}", 0.0),
        ("x^2+2x+1", "1 + 2x + x^2", 1.0),
        ("x^2+2x+1", "(x+1)^2", 0.0),
        (r"\{1,2\}", r"\{2,1\}", 1.0),
        (r"\{1,2\}", r"\{2,3-2\}", 0.0),
    ],
)
def test_in_simplest_form(gold: str, answer: str, wanted: float):
    assert score(f"${answer}$", gold, require_simplified=True) == wanted


@pytest.mark.parametrize(
    "gold", [None, True, "", "Paris", "1 or 2 of 3", r"\frac{1}{0}", "0/0", "+", ["7"], "9^{9^{9}}"]
)
def test_a_gold_that_cannot_be_parsed_is_refused(gold: object):
    with pytest.raises(DataError):
        MathVerify().check_row(GradeInput("", None, gold=gold))


def test_only_the_end_of_an_answer_is_searched():
    answer = "It is 72. " + "So she went home. " * 10

    assert score(answer, "72") == 1.0
    assert score(answer, "72", max_answer_chars=100) == 0.0


def test_a_solution_with_calculations_is_right_with_its_gold_and_wrong_with_another():
    solution = "It cost $500*2=$<<500*2=1000>>1000, so $1,080 in all.\n#### 1,080"

    for extract in ("all", AfterMarker(after="####")):
        assert score(solution, "1,080", extract=extract) == 1.0
        assert score(solution, "1,081", extract=extract) == 0.0


def test_a_timer_of_the_caller_is_left_alone_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]):
    def not_reached(number: int, frame: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGALRM, not_reached)
    signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        assert score("$x^2 + 1 + 0$", "1 + x^2") == 1.0
        assert 90 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
        assert signal.getsignal(signal.SIGALRM) is not_reached
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert capfd.readouterr() == ("", "")


def test_brackets_that_are_nested_too_deep_are_not_parsed():
    assert score(rf"\boxed{{{'(' * 200}x+1{')' * 200}}}", "x+1") == 0.0


def test_it_works_in_any_thread():
    scores: list[float] = []
    thread = threading.Thread(target=lambda: scores.append(score("$2y + 0$", "$y + y$")))
    thread.start()
    thread.join()

    assert scores == [1.0]


def test_loading_warms_the_parser_up():
    MathVerify().load()

    assert score("$z$", "z") == 1.0


def test_a_gold_of_thousands_of_digits_is_refused():
    with pytest.raises(DataError, match="a very large number"):
        MathVerify().check_row(GradeInput("", None, gold=10**5000))
