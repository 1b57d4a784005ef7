"""Tables of results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from posttrain.dataserver.offline.tables import Mean, table_of, weight_text


def lines_of(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(table_of(columns, rows))
    return captured.get().splitlines()


NUMBERS = ("completions", "ok", "abstain", "error", "mean reward")


@given(st.text("abc-", min_size=1, max_size=100), st.text("xyz ", min_size=1, max_size=60).filter(str.strip))
def test_names_are_folded_and_never_cut_off_in_80_columns(dataset: str, stage: str):
    row = (dataset, stage.strip(), "1,234,567", "1,234,567", "0", "12", "0.1234")
    lines = lines_of(("data set", "stage", *NUMBERS), [row])
    assert max(map(len, lines)) <= 80
    body = "".join(lines[3:])
    for name, letters in ((dataset, "abc-"), (stage, "xyz")):
        assert [letter for letter in body if letter in letters] == [letter for letter in name if letter in letters]
    assert "1,234,567" in body and "0.1234" in body


def test_the_rows_of_a_data_set_stand_together_under_its_name():
    rows = [("sums", "early", "1"), ("words", "early", "2"), ("sums", "late", "3")]
    body = [line.split() for line in lines_of(("data set", "stage", "completions"), rows)[3:-1]]
    assert body == [["sums", "early", "1"], ["late", "3"], ["words", "early", "2"]]


def test_a_mean_is_over_the_values_that_are_there():
    mean = Mean()
    assert str(mean) == "–"
    for value in (0.5, None, 0.25, None):
        mean.add(value)
    assert (str(mean), mean.count) == ("0.3750", 2)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1.0], "1"),
        ([1 / 3], "0.333"),
        ([None], "gate"),
        ([], "–"),
        ([0.75, 0.25, 0.75], "0.25 or 0.75"),
        ([None, 0.5], "0.5 or gate"),
        ([0.0], "0"),
    ],
)
def test_a_weight_is_a_share_or_a_gate(weights: list[float | None], text: str):
    assert weight_text(weights) == text
