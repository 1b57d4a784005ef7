"""The ledger of a data set: shares, refusals and the terminal table."""

import json

import pytest
from rich.console import Console

from posttrain.data.ledger import Ledger, ledger_table
from posttrain.errors import DataError


def test_the_shares_are_those_of_kept_tokens_and_of_answers():
    ledger = Ledger("d", tokens=200, trained_tokens=50, answers=8, answers_with_end=6)
    assert ledger.trained_share == 0.25
    assert ledger.end_share == 0.75


def test_the_shares_of_nothing_are_nothing():
    assert (Ledger("d").trained_share, Ledger("d").end_share) == (0.0, 0.0)


def test_dropped_rows_are_counted_by_their_reason():
    ledger = Ledger("d")
    for reason in ("too long", "nothing to train", "too long"):
        ledger.drop(reason)
    assert ledger.dropped == {"too long": 2, "nothing to train": 1}


def test_two_ledgers_never_share_their_counts():
    one, other = Ledger("one"), Ledger("other")
    one.drop("too long")
    one.faults.append("line 1")
    assert (other.dropped, other.faults) == ({}, [])


def test_a_ledger_comes_back_from_json_as_it_was():
    ledger = Ledger("d", records=3, bad=1, dropped={"too long": 1}, rows=1, tokens=9, faults=["file:2: ü"])
    assert Ledger(**json.loads(json.dumps(ledger.as_dict()))) == ledger


def test_what_cannot_teach_anything_is_refused_with_the_reasons():
    ledger = Ledger("d", records=5, dropped={"too long": 3, "nothing to train": 2})
    with pytest.raises(DataError, match=r"no trained tokens remain from 5 rows \(3 too long, 2 nothing to train\)"):
        ledger.require_something_to_learn(0.0)


def test_what_cannot_teach_to_stop_is_refused_below_the_limit_and_not_at_it():
    ledger = Ledger("d", tokens=100, trained_tokens=50, answers=10, answers_with_end=9)
    ledger.require_something_to_learn(0.9)
    with pytest.raises(DataError, match=r"datasets\.d: only 90\.0% of the answers keep .* = 91%"):
        ledger.require_something_to_learn(0.91)


def test_the_table_has_a_row_per_data_set_with_its_numbers():
    # 995 of 1000 ends must not round up to 100%.
    ledgers = [
        Ledger(
            "long_name",
            records=1234,
            bad=1,
            dropped={"too long": 2, "nothing to train": 3},
            cut_left=4,
            cut_right=5,
            rows=1228,
            tokens=1_000_000,
            trained_tokens=250_000,
            longest=2048,
            answers=1000,
            answers_with_end=995,
        ),
        Ledger("empty"),
    ]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(ledger_table(ledgers))
    _, head, _, full, empty = (" ".join(line.split()) for line in capture.get().splitlines() if line.strip())
    assert head == "data set read bad dropped cut rows tokens trained longest ends"
    assert full == "long_name 1,234 1 3 nothing to train, 2 too long 4 left, 5 right 1,228 1,000,000 25% 2,048 99%"
    assert empty == "empty 0 0 0 0 0 0 0% 0 0%"
