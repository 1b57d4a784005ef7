"""The expressions that a text gives as its answer."""

import time
from decimal import Decimal

import pytest

from posttrain.dataserver.graders.text.expressions import (
    Expression,
    find_expressions,
    has_numbers_side_by_side,
    is_expression,
    with_fractions,
    without_unit,
)


def reads(latex: str) -> bool:
    """Stands in for the parser: accepts any text without `#`, `→` or `;`."""
    return not set(latex) & set("#→;")


def found(text: str, max_chars: int = 2000, only: bool = False) -> list[str]:
    return [expression.latex for expression in find_expressions(text, max_chars, reads, only)]


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        (r"I get \boxed{\frac{1}{2}}, not $3$", [r"\frac{1}{2}"]),
        (r"\boxed{7} and \boxed{8}", ["7", "8"]),
        (r"\boxed{7} so \boxed{7.0}", ["7.0"]),
        (r"\boxed{72 apples}", ["72"]),
        (r"\boxed{Paris}", []),
        (r"\boxed{7} \boxed{Paris}", []),
        (r"\boxed{9^{9^{9}} + 7}", []),
        ("$x$ and then $y + 1$", ["y + 1"]),
        ("$$x$$ or $y$", ["x", "y"]),
        (r"\(x\), \[y\] and $z$", ["x", "y", "z"]),
        ("$8$, or maybe $7$", ["7"]),
        ("It costs $5 and leaves $7", ["7"]),
        ("$5 and $7 are $12", ["12"]),
        (r"\boxed{$x + 1$}", ["x + 1"]),
        ("$50+$20=$<<50+20=70>>70.", ["70"]),
        (r"2\sqrt{3}", [r"2\sqrt{3}"]),
        ("**1/2**.", ["1/2"]),
        ("1e3", ["1000"]),
        ("50%", [r"50\%"]),
        ("It is 50 %.", [r"50\%"]),
        ("It is 1/2.", ["1/2"]),
        ("It is \u22121/2.", ["-1/2"]),
        ("It is 2 1/2.", []),
        ("7 or 8", ["7", "8"]),
        ("In May 7, and in June 8", ["8"]),
        ("It is 1.5 × 10^3", []),
        ("7 8", ["7", "8"]),
        ("7 and/or 8", ["7", "8"]),
        ("#### 72", ["72"]),
        ("72;", ["72"]),
        ("8+2=10\n(8/10)*100=80", ["80"]),
        ("#### \\frac{1}{2}", ["#### \\frac{1}{2}"]),
        ("A: 72", ["72"]),
        ("$7$ million", [""]),
        (r"\boxed{7}\,million", []),
        (r"\boxed{7} million", []),
        (r"\boxed{7\text{ million}}", []),
        (r"\boxed{0x48}", []),
        ("no number", []),
        ("", []),
    ],
)
def test_boxes_then_delimiters_then_the_whole_text_then_prose(text: str, expressions: list[str]):
    assert found(text) == expressions


def test_a_plain_number_comes_with_its_value():
    assert find_expressions("1,234.50", 100, reads) == [Expression("1234.50", Decimal("1234.5"))]
    assert find_expressions("1e60", 100, reads) == [Expression("", Decimal("1e60"))]
    assert find_expressions("-5%", 100, reads) == [Expression(r"-5\%", Decimal("-5"), percent=True)]


def test_only_the_end_of_a_long_text_is_searched_but_for_boxes():
    assert found("7 apples " + "and " * 50, max_chars=20) == []
    assert found(r"\boxed{7} " + "and " * 50, max_chars=20) == ["7"]


def test_a_gold_in_prose_has_one_number():
    assert found("72 apples", only=True) == ["72"]
    assert found("72 apples for 3 days", only=True) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x + 1", True),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
        (r"e^{x^2}", True),
        (r"2^{1000}", True),
        ("xy + 2ab", True),
        ("AB", True),
        (r"2\pi rh", True),
        ("abc + xyz", True),
        ("one half", False),
        ("xy or ab", False),
        ("is x", False),
        ("72 cm", False),
        ("72 ab", False),
        ("ab 72", False),
        ("Mr x", False),
        ("xyq", False),
        (r"48\ 24", False),
        ("48(24)", False),
        (r"2\frac{1}{2}", True),
        (r"2\frac{3}{2}", False),
        ("7 8", False),
        ("= 7", False),
        ("7 +", False),
        ("...", False),
        ("{7", False),
        ("x^2^3", False),
        ("9^{9^{9}}", False),
        ("2^{10000}", False),
        ("(10000!)!", False),
        ("123456!", False),
        (r"\binom{2n}{n}", True),
        (r"\binom{99999}{5}", False),
        (r"\binom{\pi}{999}", False),
        (r"\begin{pmatrix}1 & x\\0 & 1\end{pmatrix}^{-1}", True),
        (r"\left(\begin{pmatrix}1 & x\\0 & 1\end{pmatrix}\right)^{99}", False),
        ("(" * 8 + "1" + ")" * 8, True),
        ("(" * 9 + "1" + ")" * 9, False),
        ("1+" * 249 + "1", True),
        ("1+" * 250 + "1", False),
    ],
)
def test_an_expression_has_no_words_and_can_be_parsed_in_time(text: str, wanted: bool):
    assert is_expression(text) is wanted


def test_more_than_twenty_candidates_are_no_answer():
    boxes = [rf"\boxed{{{number}}}" for number in range(21)]

    assert len(found(" ".join(boxes[:20]))) == 20
    assert found(" ".join(boxes)) == []


@pytest.mark.parametrize("piece", [r"\boxed{1}", r"\boxed{", "$", "$x", r"\(", "1 or ", "1/", "\\"])
def test_a_million_characters_take_seconds_at_most(piece: str):
    begin = time.process_time()
    find_expressions((piece * 1_000_000)[:1_000_000], 2000, reads)

    assert time.process_time() - begin < 8


@pytest.mark.parametrize(
    ("latex", "bare"),
    [
        (r"72\text{ cm}", "72"),
        (r"72\ \mathrm{cm}^{2}", "72"),
        (r"5\,\text{m}/\text{s}", "5"),
        (r"x = \frac{1}{2}\text{ hours}", r"x = \frac{1}{2}"),
        ("5 m", "5"),
        (r"\frac{1}{2}\ m^2", r"\frac{1}{2}"),
        ("5m", "5m"),
        ("5 t", "5 t"),
        (r"\pi r^2 h", r"\pi r^2 h"),
        (r"2\mathrm{e}", r"2\mathrm{e}"),
        (r"A^\mathrm{T}", r"A^\mathrm{T}"),
        (r"\text{(A)}", r"\text{(A)}"),
        (r"7\text{ or }8", r"7\text{ or }8"),
        ("72", "72"),
    ],
)
def test_a_unit_stands_at_the_end_of_an_amount(latex: str, bare: str):
    assert without_unit(latex) == bare


@pytest.mark.parametrize(("latex", "bare"), [("5m", "5"), ("5t", "5t"), ("5mx", "5mx"), (r"\pi m", r"\pi m")])
def test_a_letter_may_follow_its_number_at_once(latex: str, bare: str):
    assert without_unit(latex, glued=True) == bare


@pytest.mark.parametrize(
    ("latex", "fraction"),
    [
        (r"0.\overline{3}", r"\frac{1}{3}"),
        (r".\bar{3}", r"\frac{1}{3}"),
        (r"0.1\overline{6}", r"\frac{1}{6}"),  # (16 − 1) / 90
        (r"1.\overline{142857}", r"\frac{8}{7}"),
        (r"x = 2.\dot3 + 1", r"x = \frac{7}{3} + 1"),
        (r"\overline{AB}", r"\overline{AB}"),
        ("0.3", "0.3"),
    ],
)
def test_a_repeating_decimal_is_a_fraction(latex: str, fraction: str):
    assert with_fractions(latex) == fraction


@pytest.mark.parametrize(
    "latex",
    [
        *("48 24", r"48\ 24", "48~24", "48(24)", "(48)(24)", r"48\left(24\right)", "{48}{24}", r"48\{24\}"),
        *(r"48\frac{24}{1}", r"\frac{48}{1}24", r"48\binom{24}1", r"48\max(24)", "x + 1 2", "((48))(24)"),
        *(
            r"\{48\}\{24\}",
            r"\frac{48 24}{1}",
            r"\sqrt{48 24}",
            r"1\times{48}{24}",
            r"\lfloor{48}24\rfloor",
            r"\sqrt{1}{48}{24}",
            r"\pi^0{48}{24}",
            r"\lbrace 48\rbrace\lbrace 24\rbrace",
            r"\lbrack 48\rbrack 24",
            r"\sqrt{(48)24}",
            r"\frac{48(24)}{1}",
            r"\frac{\frac{48}{1}24}{1}",
            r"\sqrt[3]{48\frac{24}{1}}",
            r"48\quad _1\quad 24",
            r"48\phantom{24}",
            "48|^{1}24",
            r"48\\!24",
            r"\{48\} 24",
            r"48^\circ 24'",
            r"48^{\circ}24",
            "48'24",
        ),
    ],
)
def test_numbers_with_only_space_or_brackets_between_them_are_side_by_side(latex: str):
    assert has_numbers_side_by_side(latex)


@pytest.mark.parametrize(
    "latex",
    [
        *("72", r"48\cdot 24", "48+24", "1, 2", "(1, 2)", r"1\,234", r"2\frac{1}{2}", r"2\ \frac12", r"\frac12"),
        *(r"\log_2 8", "x_1 2", "10^{3}5", "2(x+1)", "2(3+4)", "3x 4y", r"\sqrt[3]{8}", r"\binom{5}{2}", "f(3)"),
        *(r"\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}", r"3\sqrt{2}", r"\frac{\sqrt{3}}{2}", "110_2", r"90^\circ"),
        *(r"\sqrt {4} 5", r"\frac {1} {2}", r"\sqrt [3] {8}"),
    ],
)
def test_other_numbers_are_not(latex: str):
    assert not has_numbers_side_by_side(latex)


@pytest.mark.parametrize("piece", ["1", "1 ", r"\frac", "{", r"\text{m}", r"\ ", "(1)", "^", "m"])
def test_the_longest_expression_takes_no_time(piece: str):
    text = (piece * 500)[:500]
    begin = time.process_time()
    for _ in range(10):
        has_numbers_side_by_side(text)
        without_unit(text, glued=True)
        with_fractions(text)

    assert time.process_time() - begin < 2
