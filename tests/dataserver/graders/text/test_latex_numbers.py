"""Units, repeating decimals and numbers side by side, as LaTeX writes them."""

import time

import pytest

from posttrain.dataserver.graders.text.latex_numbers import has_numbers_side_by_side, with_fractions, without_unit


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
