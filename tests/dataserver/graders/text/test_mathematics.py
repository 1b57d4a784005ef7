"""What SymPy would evaluate forever is recognised beforehand, and what it evaluates at once is not."""

import time

import pytest

from posttrain.dataserver.graders.text.mathematics import is_heavy, parse


def heavy(latex: str) -> bool:
    parsed = parse(latex)
    assert parsed is not None
    return is_heavy(parsed)


@pytest.mark.parametrize(
    "latex",
    [
        *("72", r"\frac{1}{2}", r"2\sqrt{3}", "x^{9999}+1", "2^{9999}", "2023^{2023}", "999!", r"\sqrt{2^{999}+1}"),
        *("(1+x)^{50}", "(x+y+z)^{20}", "(1+0.05)^{360}", "(x+1)(x+2)(x+3)(x+4)", r"\sin^{50}(x)", "e^{x^2+1}"),
        *(r"\sum_{n=1}^{99} n^2", r"\prod_{k=2}^{50}(1-\frac{1}{k})", r"\int_0^1 x^2 dx", r"2^{2023n}", r"2^{2^{n}}"),
        *(r"\begin{pmatrix}1&x\\0&1\end{pmatrix}^{-1}", r"\{1, 2\}", "(1, 2)", "x = 5", "1 < x < 2", r"\emptyset"),
    ],
)
def test_an_answer_is_none_too_much(latex: str):
    assert not heavy(latex)


@pytest.mark.parametrize(
    "latex",
    [
        "(1+x)^{9999}",  # 10,000 terms
        "(x+y+z+w)^{99}",  # 102 choose 3
        "(1+x)^{99}(1+y)^{99}",  # 100 · 100
        "(10-x)^{(10)^3}",
        r"(\tan(2+y))^{2023}",
        "(9^9)^{(9^9)}",
        r"\sqrt{10^{9999}+1}",  # a 10,000-digit number under a root
        "99999!",
        r"\sum_{n=1}^{9999}\frac{1}{n^3}",
        r"\sum_{n=1}^{\infty}\frac{\sin n}{n^3+1}",
        r"\sum_{n=1}^{N} n^5",
        r"\sum_{a=1}^{99}\sum_{b=1}^{99} ab",  # 99 · 99
        r"\{1, (1+x)^{9999}\}",
        "x = (1+y)^{9999}",
        r"\begin{pmatrix}1\\(1+x)^{9999}\end{pmatrix}",
    ],
)
def test_what_is_longer_than_any_answer_is(latex: str):
    begin = time.process_time()

    assert heavy(latex)
    assert time.process_time() - begin < 2
