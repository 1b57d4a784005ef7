"""Choosing validation rows by a hash of their content."""

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.data.records import Record
from posttrain.data.splits import content_hash, held_out, held_out_rows
from posttrain.errors import ConfigError, DataError


def record(text: str, index: int = 0) -> Record:
    return Record(index, index + 1, Conversation((Message("user", text), Message("assistant", text))), 1.0)


def texts(records: list[Record]) -> list[str]:
    return [record.conversation.messages[0].content for record in records]


def test_the_share_is_as_asked_and_every_row_is_on_one_side():
    records = [record(str(index), index) for index in range(200)]
    train, validation = held_out(records, 0.1, 0, "d")
    assert (len(train), len(validation)) == (180, 20)
    assert sorted(train + validation, key=lambda one: one.index) == records
    assert [one.index for one in train] == sorted(one.index for one in train)


def test_the_order_of_the_file_does_not_matter():
    words = [str(index) for index in range(100)]
    shuffled = random.Random(0).sample(words, 100)
    one = held_out([record(word) for word in words], 0.2, 7, "d")[1]
    other = held_out([record(word) for word in shuffled], 0.2, 7, "d")[1]
    assert sorted(texts(one)) == sorted(texts(other))


def test_another_seed_holds_out_other_rows():
    records = [record(str(index)) for index in range(100)]
    assert texts(held_out(records, 0.2, 1, "d")[1]) != texts(held_out(records, 0.2, 2, "d")[1])
    assert texts(held_out(records, 0.2, 1, "d")[1]) == texts(held_out(records, 0.2, 1, "d")[1])


def test_rows_that_say_the_same_are_on_the_same_side():
    records = [record(str(index % 50)) for index in range(200)]
    train, validation = held_out(records, 0.25, 0, "d")
    assert not set(texts(train)) & set(texts(validation))
    assert len(validation) == 48  # twelve contents of four rows; a thirteenth would exceed 50


def test_a_content_with_too_many_rows_is_passed_over():
    # A fifth of 10 rows is 2, so the eight rows with the same content can only go to training.
    records = [record("often") for _ in range(8)] + [record("a"), record("b")]
    for seed in range(20):
        assert sorted(texts(held_out(records, 0.2, seed, "d")[1])) == ["a", "b"]


def test_the_smallest_content_is_held_out_where_all_have_too_many_rows():
    contents = [1] * 5 + [2] * 3 + [3] * 4
    for seed in range(20):
        assert held_out_rows(contents, 0.01, seed, "d")[1].tolist() == [5, 6, 7]


def test_both_sides_get_something_at_any_share():
    for fraction in (0.001, 0.5, 0.999):
        train, validation = held_out_rows([1, 2], fraction, 0, "d")
        assert (len(train), len(validation)) == (1, 1)


@given(
    contents=st.lists(st.integers(0, 20), min_size=2, max_size=60).filter(lambda each: len(set(each)) > 1),
    fraction=st.floats(0.001, 0.999),
    seed=st.integers(-5, 2**64),
)
def test_any_rows_are_parted_by_content(contents, fraction, seed):
    train, validation = held_out_rows(contents, fraction, seed, "d")
    assert sorted([*train, *validation]) == list(range(len(contents)))
    assert len(train) and len(validation)
    assert not {contents[row] for row in train} & {contents[row] for row in validation}


def test_arrays_of_unsigned_integers_are_taken():
    contents = [2**64 - 1, 0, 5, 7]
    rows = held_out_rows(np.array(contents, dtype=np.uint64), 0.5, 3, "d")
    assert [part.tolist() for part in rows] == [part.tolist() for part in held_out_rows(contents, 0.5, 3, "d")]
    assert rows[0].dtype == np.int64


def test_data_that_all_say_the_same_cannot_be_parted():
    for contents in ([], [1], [1, 1, 1]):
        with pytest.raises(DataError, match="d: nothing can be held out"):
            held_out_rows(contents, 0.5, 0, "d")


def test_a_share_of_nothing_or_everything_is_refused():
    for fraction in (0, 1, -0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            held_out_rows([1, 2], fraction, 0, "d")


def test_the_content_is_what_is_said_by_whom_and_with_which_tools():
    turns = (Message("user", "q"), Message("assistant", "a"))
    same = [
        Conversation(turns),
        Conversation((turns[0], Message("assistant", "a", train=False))),
    ]
    other = [
        Conversation((*turns, Message("user", ""))),
        Conversation((Message("system", "q"), turns[1])),
        Conversation((turns[0], Message("assistant", "a", reasoning=""))),
        Conversation((turns[0], Message("assistant", "a", tool_calls=(ToolCall("f", {"x": 1}),)))),
        Conversation((Message("user", "q", name="n"), turns[1])),
        Conversation(turns, ({"name": "f"},)),
        Conversation((Message("user", "qa"), Message("assistant", ""))),
    ]
    assert len({content_hash(one) for one in same}) == 1
    assert len({content_hash(one) for one in same + other}) == 1 + len(other)


def test_the_order_of_keys_is_no_content():
    one, other = ({"name": "f", "x": 1},), ({"x": 1, "name": "f"},)
    turns = (Message("user", "q"),)
    assert content_hash(Conversation(turns, one)) == content_hash(Conversation(turns, other))


def test_splits_of_earlier_versions_stay_as_they_were():
    assert content_hash(Conversation((Message("user", "é"),))) == 7340694808817686570
    assert held_out_rows(range(30), 0.2, 5, "d")[1].tolist() == [2, 4, 7, 13, 18, 22]


def test_every_process_computes_the_same():
    code = (
        "from posttrain.conversation.messages import *; from posttrain.data.splits import *; "
        "print(content_hash(Conversation((Message('user', 'é'),))), "
        "*held_out_rows(range(30), 0.2, 5, 'd')[1])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    here = [content_hash(Conversation((Message("user", "é"),))), *held_out_rows(range(30), 0.2, 5, "d")[1]]
    assert runs == [" ".join(map(str, here)) + "\n"] * 2
