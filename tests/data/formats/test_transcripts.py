"""Pairs of transcripts, compared with the prompt that TRL's `extract_prompt` finds."""

import random

import pytest
from trl.data_utils import extract_prompt

from posttrain.conversation.messages import Message
from posttrain.data.formats.transcripts import TRANSCRIPTS
from posttrain.dpo.config.data import PairColumnsConfig
from posttrain.dpo.preferences import Preference, parse_pair
from posttrain.errors import DataError

ASSISTANT = "\n\nAssistant:"
NAMES = {"user": "\n\nHuman:", "assistant": ASSISTANT}
TEXTS = ["", "Hi", "Hi there", "Hi there!", "a\n\nb", "Human: no", "\n\nHuman: typed", "é", "<|im_end|>"]


def read(chosen: str, rejected: str) -> Preference:
    return parse_pair(TRANSCRIPTS.convert({"chosen": chosen, "rejected": rejected}), PairColumnsConfig())


def written(messages) -> str:
    return "".join(f"{NAMES[each.role]} {each.content}" for each in messages)


def some_pair(chance: random.Random) -> tuple[str, str]:
    def turns(roles: list[str]) -> str:
        return "".join(f"{NAMES[role]} {chance.choice(TEXTS)}" for role in roles)

    prompt = turns(["user", *["assistant", "user"] * chance.randrange(3)])
    ends = [turns(["assistant", *["user", "assistant"] * (chance.random() < 0.1)]) for _ in range(2)]
    if chance.random() < 0.1:
        return prompt + ends[0], turns(["user"]) + ends[1]
    return prompt + ends[0], prompt + ends[1]


def test_ten_thousand_pairs_have_the_prompt_that_trl_finds_cut_back_to_the_last_turn():
    chance, read_ones = random.Random(0), 0
    for _ in range(10_000):
        chosen, rejected = some_pair(chance)
        try:
            pair = read(chosen, rejected)
        except DataError:
            assert has_no_pair(chosen, rejected), (chosen, rejected)
            continue
        read_ones += 1
        assert not has_no_pair(chosen, rejected), (chosen, rejected)
        found = extract_prompt({"chosen": chosen, "rejected": rejected})["prompt"]
        prompt = found[: found.rindex(ASSISTANT)]
        assert written(pair.prompt.messages) == prompt
        assert pair.chosen is not None and written(pair.chosen.messages) == chosen
        assert pair.rejected is not None and written(pair.rejected.messages) == rejected
    assert read_ones > 4_000


def has_no_pair(chosen: str, rejected: str) -> bool:
    """Whether no answer differs: both are the same, one continues the other, or the first difference is in a prompt.

    TRL cuts the last character off the prompt of texts that continue each other, and takes part of a user's turn into
    the answer where users' turns differ.
    """
    sides = [split(side) for side in (chosen, rejected)]
    shared = 0
    while shared < min(map(len, sides)) and sides[0][shared] == sides[1][shared]:
        shared += 1
    if shared in map(len, sides):
        return True
    differing = [side[shared] for side in sides]
    if any(role != "assistant" for role, _ in differing) or shared == 0:
        return True
    return any(not any(text.strip() for role, text in side[shared:] if role == "assistant") for side in sides) or any(
        side[-1] == ("assistant", side[-1][1]) and not side[-1][1].strip() for side in sides
    )


def split(transcript: str) -> list[tuple[str, str]]:
    turns = []
    for part in transcript.replace("\n\nHuman:", "\0user\0").replace(ASSISTANT, "\0assistant\0").split("\0")[1:]:
        turns.append(part)
    return list(zip(turns[::2], turns[1::2], strict=True))


def test_a_transcript_is_a_conversation():
    converted = TRANSCRIPTS.convert(
        {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bye\n\nAssistant: See you."}
    )
    assert [(each["role"], each["content"]) for each in converted["chosen"]] == [
        ("user", "Hi"),
        ("assistant", "Hello."),
        ("user", "Bye"),
        ("assistant", "See you."),
    ]


def test_an_answer_is_what_follows_the_last_shared_turn():
    pair = read("\n\nHuman: Hi\n\nAssistant: Hello, you", "\n\nHuman: Hi\n\nAssistant: Hello, me")
    assert pair.prompt.messages == (Message("user", "Hi"),)
    assert pair.chosen is not None and pair.chosen.messages[-1] == Message("assistant", "Hello, you")


def test_a_row_without_a_transcript_is_refused():
    with pytest.raises(DataError, match="no column has a transcript"):
        TRANSCRIPTS.convert({"chosen": "a", "rejected": "b"})
