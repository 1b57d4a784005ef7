"""Plain numbers in a text: parsed exactly, strictly and in linear time."""

import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.graders.text.numbers import (
    Number,
    gold_number,
    is_near,
    last_number,
    numerals,
    parse_number,
)
from posttrain.errors import DataError


def find_numbers(text: str) -> list[Number]:
    """All plain numbers, left to right."""
    return [found.number for found in numerals(text) if found.number]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", "72"),
        ("007", "7"),
        ("-5", "-5"),
        ("\u22125", "-5"),
        ("\u20135", "-5"),
        ("+5", "5"),
        ("3.50", "3.5"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("1,234", "1234"),
        ("-1,234,567.50", "-1234567.5"),
        ("1{,}234", "1234"),
        (r"10\,000", "10000"),
        (r"10,\!000", "10000"),
        ("1e3", "1000"),
        ("1E+3", "1000"),
        ("1e\u22123", "0.001"),
        ("$5", "5"),
        (r"\$5", "5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("£3.50", "3.5"),
        ("5€", "5"),
        ("50%", "50"),
        (r"50\%", "50"),
        ("$-5$", "-5"),
        (" 72\n", "72"),
        ("0e5", "0"),
        ("1e9999", "1e9999"),
    ],
)
def test_a_text_that_is_a_number(text: str, value: str):
    assert parse_number(text) == Decimal(value)
    assert [number.value for number in find_numbers(text)] == [Decimal(value)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "72.",
        "5-",
        "**72**",
        "72 apples",
        "1 2",
        "x = 5",
        "NaN",
        "inf",
        "Infinity",
        "+",
        "-",
        "$",
        "%",
        "٧",
        "７",
        "Ⅶ",
    ],
)
def test_a_text_that_is_something_else_too(text: str):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5-", [5]),
        ("5.", [5]),
        ("...5", [5]),
        ("**72**", [72]),
        ("__72__", [72]),
        ("Answer:72", [72]),
        ("(7)", [7]),
        ("1, 2, 3", [1, 2, 3]),
        ("x=3,y=4", [3, 4]),
        ("7-year-old", [7]),
        ("$5/day", [5]),
        ("48 + 24 = 72", [48, 72]),
        ("10-3=7", [10, 7]),
        ("10 -5", [10, -5]),
        ("共72个", [72]),
        ("\0" + "72\0", [72]),
        ("\ud80072\ud800", [72]),
        ("72 m^2", [72]),
        (r"72\text{ cm}^{2}", [72]),
        ("72 m2 of CO2", [72]),
    ],
)
def test_numbers_in_a_text(text: str, values: list[int]):
    assert [number.value for number in find_numbers(text)] == values


@pytest.mark.parametrize(
    "text",
    [
        "3.14.15", "2024-01-05", "2024-01-05T10:00", "05-01-2024", "05/01/2024", "12:30", "v1.2", "1,23", "12,34,567",
        "0,123", "1,2,3", "1.000,5", "x7", "7x", "15km", "3rd", "a7b", "7π", "7²", "7½", "7\u20e3", "7\u200b2",
        "72\u0301", "1_000", "0x1F", "1/7", "7/10", "10^3", "10^{3}", "2^-3", "3 + 4 is what", r"\frac{7}{2}",
        r"\frac{1}{7}", r"\sqrt{7}", r"7\sqrt{2}", r"7\pi", "7√2", "√7", r"\log 7", "1.5 × 10^3", r"1.5 \times 10^{3}",
        "-$-5", "1e10000", "1e-10000", "1e999999999", "1e" + "9" * 50, "1" * 1001, "NaN", "x-5", "COVID-19", "No.5",
    ],
)  # fmt: skip
def test_what_is_written_last_is_no_plain_number(text: str):
    assert last_number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "- 7", "x = - 7", "$- 7$", r"$x = -\,7$", "#### - 7", "- $7", "-(7)", r"-\boxed{7}", "\u20147",
        "\ufe637", "\u20107", "\u20117", "minus 7", "Minus $7", "negative 7", "- 7 apples", "-\n7",
    ],
)  # fmt: skip
def test_a_number_after_a_sign_that_does_not_touch_it_is_in_doubt(text: str):
    assert last_number(text) is None
    assert last_number(text.replace("7", "-7")) is None


@pytest.mark.parametrize(
    "text",
    [
        "2**7", "7!", "6 x 7", "17 mod 7", "log 7", "log_2 7", "sqrt(7)", "±7", "+/- 7", "7 million", "**7** million",
        "7 dozen", "7-thousand", "<7", "< 7", "x > 7", "x>7", "x <= 7", "≠7", r"\neq 7", r"0\cdot x+7", "x * 7",
        "3 : 7", "7 and a half", "6 times 7", "7 squared",
    ],
)  # fmt: skip
def test_an_operand_a_bound_and_a_multiple_are_no_plain_numbers(text: str):
    assert last_number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "7 apples", "$7", "7%", "= 7", "x=7", "is 7.", "**7**", "*7*", "(7)", "7)", "* 7", "<b>7</b>", "> 7", "=> 7",
        "-> 7", "<<3+4=7>>7", "---\n7", "x ≈ 7", "Step 3: 7", "3 + 4 = 7", r"\boxed{7}", "nonminus 7",
    ],
)  # fmt: skip
def test_what_stands_around_a_plain_number(text: str):
    last = last_number(text)

    assert last is not None
    assert last.value == 7


def test_the_last_number_has_its_place():
    text = "from 12 to $\u22121,200.50."
    last = last_number(text)

    assert last is not None
    assert text[slice(*last.span)] == "\u22121,200.50"
    assert last.value == Decimal("-1200.5")


def test_what_is_no_plain_number_still_counts_as_written():
    assert [numeral.digits for numeral in numerals("7 of 1/2, 15km, x9 and 2024-01-05")] == [
        "7", "1/2", "15km", "2024-01-05",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gold", "value"),
    [(72, "72"), (0.1, "0.1"), (-1e22, "-1e22"), ("$1,080", "1080"), ("72 apples", "72"), (-0.0, "0")],
)
def test_a_gold_is_a_number_or_a_text_with_one(gold: object, value: str):
    assert gold_number(gold) == Decimal(value)


@pytest.mark.parametrize(
    "gold", ["", "x", "3 or 4", "1/7", True, None, [72], {"a": 1}, float("nan"), float("inf"), 10**2000]
)
def test_a_gold_without_one_number_is_refused(gold: object):
    with pytest.raises(DataError, match="gold must"):
        gold_number(gold)


def test_a_gold_of_thousands_of_digits_is_refused():
    with pytest.raises(DataError, match="a very large number"):
        gold_number(10**5000)


def test_nearness_is_measured_against_the_gold():
    # 5 % of 200 is 10.
    assert is_near(Decimal(210), Decimal(200), relative=0.05)
    assert not is_near(Decimal("210.01"), Decimal(200), relative=0.05)
    assert is_near(Decimal("-0.1"), Decimal(0), absolute=0.1)
    assert not is_near(Decimal("0.1"), Decimal(0), relative=0.5)
    assert is_near(Decimal("1e9999"), Decimal("1e9999"))
    assert not is_near(Decimal("1e9999"), Decimal("1e-9999"), relative=0.9, absolute=1e300)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=6))
def test_a_decimal_written_with_commas_is_read_again(value: Decimal):
    number = last_number(f"So it is {value:,} apples")

    assert number is not None
    assert number.value == value == parse_number(f"{value:,}")


@given(st.text(st.sampled_from("0123456789.,-+eE$%/^_{}\\ x共\u2212\u0301\ud800") | st.characters(), max_size=40))
def test_any_text_can_be_read(text: str):
    for number in find_numbers(text):
        assert number.value.is_finite()
        assert text[slice(*number.span)].strip() == text[slice(*number.span)] != ""


PIECES = [
    "1", "1,", ",111", "1 ", "1.", "-", "1-", "1e", "1e+", "a", "ab ", "$", "$ ", "2024-01-05-", "共", "1{,}", "_",
    "1^", "\u0301", "1\u200b", ".", "\0", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_a_million_characters_take_seconds_at_most(piece: str):
    text = (piece * 1_000_000)[:1_000_000]
    begin = time.process_time()
    last_number(text)
    parse_number(text)

    assert time.process_time() - begin < 8


PIECES = st.sampled_from(
    [
        *"0123456789.,-+/^_{}()$%=xeE*!<> \n\t\u2212\u2014\u00ad",
        "minus ",
        " million",
        "$ ",
        "\\frac",
        "{,}",
        "1e3",
        "x7",
        "word ",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join))
def test_the_last_number_is_the_last_of_all_that_is_written_in_digits(text: str):
    found = list(numerals(text))

    assert last_number(text) == (found[-1].number if found else None)
