"""Alpaca rows, as chat turns and as the prompt that was published, which unsloth's documentation repeats."""

import random
import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from posttrain.conversation.messages import Conversation, Message
from posttrain.data.formats.alpaca import ALPACA, ALPACA_PROMPT
from posttrain.data.records import Columns, EmptyAnswerError, parse_record
from posttrain.errors import DataError

TEXTS = ["", "Sum up.", "### Response:\nno", "a\n\nb", "<|im_end|>", "{}", "{instruction}", "\u2028é"]


@pytest.fixture(scope="module")
def published() -> str:
    spec = find_spec("unsloth")
    assert spec is not None and spec.origin is not None
    source = (Path(spec.origin).parent / "chat_templates.py").read_text()
    found = re.search(r'"""(Below is an instruction[^"]*?\{\})"""', source)
    assert found is not None
    first, _, others = found[1].partition("\n")
    return f"{first}\n{dedent(others)}"


def read(row, made_by=ALPACA) -> Conversation:
    return parse_record(made_by.convert(row), Columns(), require_answer=False)[0]


def test_ten_thousand_rows_give_the_published_prompt(published):
    chance = random.Random(0)
    before, after = published.split(", paired with an input that provides further context")
    without_input = before + re.sub(r"### Input:\n\{\}\n\n", "", after)
    for _ in range(10_000):
        row = {name: chance.choice(TEXTS) for name in ("instruction", "input", "output")}
        if chance.random() < 0.2:
            row.pop("input")
        if chance.random() < 0.05:
            row["instruction"] = chance.choice([None, 3, ["a"]])
            with pytest.raises(DataError, match="instruction must be text"):
                read(row, ALPACA_PROMPT)
            continue
        context = row.get("input")
        filled = (
            published.format(row["instruction"], context, "")
            if context
            else without_input.format(row["instruction"], "")
        )
        # The published prompt ends with the colon; the newline there belongs to the answer.
        expected = [("user", filled.removesuffix("\n")), ("assistant", row["output"])]
        assert [(each.role, each.content) for each in read(row, ALPACA_PROMPT).messages] == expected
        turn = row["instruction"] + f"\n{context}" * bool(context)
        assert read(row).messages[0] == Message("user", turn)


def test_history_and_system_come_before_the_instruction():
    row = {"instruction": "c", "input": "d", "output": "e", "system": "s", "history": [["a", "b"]]}
    assert read(row).messages == (
        Message("system", "s"),
        Message("user", "a"),
        Message("assistant", "b"),
        Message("user", "c\nd"),
        Message("assistant", "e"),
    )


def test_a_pair_keeps_its_answers():
    row = {"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"}
    wanted = {"prompt": [{"role": "user", "content": "q"}], "chosen": "good", "rejected": "bad"}
    assert ALPACA.convert(row) == wanted


def test_other_columns_stay_for_who_reads_them():
    assert ALPACA.convert({"instruction": "q", "output": "4", "weight": 2, "kto_tag": True}) == {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "4"}],
        "output": "4",
        "weight": 2,
        "label": True,
    }


def test_an_empty_output_teaches_nothing():
    converted = ALPACA.convert({"instruction": "q", "output": ""})
    with pytest.raises(EmptyAnswerError):
        parse_record(converted, Columns(), require_answer=True)


@pytest.mark.parametrize("history", [["a"], [["a", "b", "c"]], "text"])
def test_a_history_that_is_no_list_of_pairs_is_refused(history):
    with pytest.raises(DataError, match="history"):
        ALPACA.convert({"instruction": "q", "output": "a", "history": history})
