"""The texts of rows of all formats that are trained."""

import pytest

from posttrain.data.row_texts import read_texts
from posttrain.errors import DataError

USER = {"role": "user", "content": "Hi"}
TURNS = [{"role": "system", "content": "Be kind."}, USER]


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("row", "prompt", "answers", "turns"),
    [
        ({"prompt": "Hi", "completion": "Yes"}, "Hi", {"answer": "Yes"}, 2),
        ({"prompt": "Hi", "answer": "gold"}, "Hi", {}, 1),
        ({"prompt": TURNS, "completion": [said("Yes")]}, "Hi", {"answer": "Yes"}, 3),
        ({"messages": [*TURNS, said("A"), USER, said("B")]}, "Hi\nA\nHi", {"answer": "B"}, 5),
        ({"prompt": "Hi", "chosen": "A", "rejected": "B"}, "Hi", {"chosen": "A", "rejected": "B"}, 2),
        ({"prompt": TURNS, "chosen": [said("A")], "rejected": said("B")}, "Hi", {"chosen": "A", "rejected": "B"}, 3),
        ({"chosen": [*TURNS, said("A")], "rejected": [*TURNS, said("B")]}, "Hi", {"chosen": "A", "rejected": "B"}, 3),
        (
            {"prompt": "Hi", "chosen": [USER, said("A")], "rejected": [USER, said("B")]},
            "Hi",
            {"chosen": "A", "rejected": "B"},
            2,
        ),
        (
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"name": "look", "arguments": {"at": 1}}],
                    },
                ]
            },
            "Hi",
            {"answer": 'look {"at": 1}'},
            2,
        ),
    ],
)
def test_prompt_and_answers(row: dict, prompt: str, answers: dict, turns: int):
    found = read_texts(row)
    assert (found.prompt, found.answers, found.turns) == (prompt, answers, turns)
    assert found.whole == "\n".join([prompt, *answers.values()])


def test_a_column_is_taken_as_it_is():
    assert read_texts({"question": "How?", "answer": "So."}, "question").prompt == "How?"


@pytest.mark.parametrize(
    ("row", "column", "reason"),
    [
        ({"question": "How?"}, None, "needs columns"),
        ({"question": "How?"}, "text", "column 'text', which is missing"),
        ({"question": 3}, "question", "not int"),
        ({"chosen": "A", "rejected": "B"}, None, "no prompt"),
        ({"prompt": "Hi", "chosen": [{"role": "no"}], "rejected": "B"}, None, "chosen: messages"),
        ({"messages": "no list"}, None, "messages"),
    ],
)
def test_other_rows_are_refused(row: dict, column: str | None, reason: str):
    with pytest.raises(DataError, match=reason):
        read_texts(row, column)
