"""Masks from the generation markers of TRL's training templates, compared with masks from rendered prefixes.

The templates are those of the model families, as TRL ships them; the tokenizers are small ones.
"""

import copy
import logging
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.errors import DataError
from posttrain.models.tokens import training_template

CONTROL = re.compile(r"<[|｜][^|｜ <>]+[|｜]>|</?[a-z]+_of_\w+>|<turn\|>|<\|turn>")

# TRL's copy of the family's template renders all conversations below as the model's own does.
ALIKE = [
    "cohere",
    "cohere2",
    "gemma",
    "gemma3",
    "llama3",
    "phi3",
    "phi3_5",
    "qwen2_5",
    "qwen3_instruct_2507",
    "qwen3_8",
]
# TRL's copy adds reasoning that the model's own template drops, or the token that begins the next turn.
OTHERWISE = ["qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "glm4moe", "deepseek_r1_distill"]
# In some or all conversations, the markers do not enclose both the requested answer and the end of its turn.
MARKED_OTHERWISE = ["gptoss", "nemotron_3_nano"]
OWN_MARKERS = ["lfm2_2_5", "lfm2_2_5_vl"]
UNKNOWN = ["llama3_1"]
FAMILIES = ALIKE + OTHERWISE + MARKED_OTHERWISE + OWN_MARKERS + UNKNOWN


@pytest.fixture(scope="session")
def family(tiny_tokenizer, qwen_like_tokenizer, metaspace_tokenizer, trl_template):
    """`family(name, base)` is a small tokenizer with the chat template and control tokens of a model family."""
    bases = {"tiny": tiny_tokenizer, "qwen": qwen_like_tokenizer, "metaspace": metaspace_tokenizer}
    made = {}

    def make(name, base="tiny"):
        if (name, base) not in made:
            tokenizer = copy.deepcopy(bases[base])
            tokenizer.chat_template = trl_template(name)
            tokens = sorted(set(CONTROL.findall(tokenizer.chat_template)))
            tokenizer.add_special_tokens({"additional_special_tokens": tokens, "bos_token": "<s>", "eos_token": "</s>"})
            made[name, base] = tokenizer
        return made[name, base]

    return make


def encoders(tokenizer, **chat):
    """Two encoders: one uses markers, the other only prefixes."""
    config = ChatConfig(template="tokenizer", **chat)
    template = training_template(config, tokenizer)
    return conversation_encoder(config, tokenizer, template), conversation_encoder(config, tokenizer)


def row_of(encoder, conversation):
    """The encoded row, or None if it is refused."""
    try:
        return encoder.rows([conversation])[0]
    except DataError:
        return None


def spans(tokenizer, row):
    """The text of each trained span."""
    found = [[]]
    for id_, flag in zip(row.ids, row.trained, strict=True):
        if flag:
            found[-1].append(id_)
        elif found[-1]:
            found.append([])
    return [tokenizer.decode(span) for span in found if span]


def talk(*texts, system=None, tools=()):
    turns = [Message("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]
    return Conversation((*([Message("system", system)] if system else []), *turns), tools)


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "one"}}},
    },
}
CALL = Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1}),))
TALKS = {
    "one answer": talk("one", "two"),
    "several turns": talk("one", "two", "three", "four"),
    "with a system message": talk("one", "two", "three", "four", system="seven"),
    "tools that are not called": talk("one", "two", tools=(ADD,)),
    "a tool call": Conversation(
        (Message("user", "one"), CALL, Message("tool", "2"), Message("assistant", "3")), (ADD,)
    ),
    "reasoning": Conversation((Message("user", "one"), Message("assistant", "two", "three"))),
    "reasoning in each turn": Conversation(
        (
            Message("user", "one"),
            Message("assistant", "two", "three"),
            Message("user", "four"),
            Message("assistant", "five", "six"),
        )
    ),
    "reasoning in the answer's text": talk("one", "<think>two</think>three", "four", "<think>five</think>six"),
    "reasoning with a tool call": Conversation(
        (
            Message("user", "one"),
            replace(CALL, reasoning="two"),
            Message("tool", "2"),
            Message("assistant", "3", "four"),
            Message("user", "five"),
            Message("assistant", "six", "seven"),
        ),
        (ADD,),
    ),
    "an answer that begins with a line break": talk("one", "\ntwo", "three", "\n\nfour\n"),
    "an earlier answer that is not trained": Conversation(
        (
            Message("user", "one"),
            Message("assistant", "two", train=False),
            Message("user", "three"),
            Message("assistant", "four"),
        )
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("train_on", ["all", "last"])
def test_markers_and_prefixes_give_the_same_row_where_prefixes_give_one(family, name, train_on):
    by_markers, by_prefixes = encoders(family(name), train_on=train_on)
    rows = {told: (row_of(by_markers, each), row_of(by_prefixes, each)) for told, each in TALKS.items()}
    assert {told: marked for told, (marked, prefixed) in rows.items() if prefixed is not None} == {
        told: prefixed for told, (_, prefixed) in rows.items() if prefixed is not None
    }
    assert by_markers.end_ids == by_prefixes.end_ids
    assert by_markers.prompts([talk("one")]) == by_prefixes.prompts([talk("one")])


@pytest.mark.parametrize("base", ["tiny", "qwen", "metaspace"])
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "gemma3", "phi3", "gptoss", "lfm2_2_5_vl"])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_that_holds_for_any_conversation(family, conversations, name, base, data):
    tokenizer, conversation = family(name, base), data.draw(conversations)
    by_markers, by_prefixes = encoders(tokenizer)
    row, prefixed = row_of(by_markers, conversation), row_of(by_prefixes, conversation)
    if prefixed is not None:
        assert row == prefixed
    elif row is not None:
        answers = [m for m in conversation.messages if m.role == "assistant" and m.train]
        trained = [id_ for id_, flag in zip(row.ids, row.trained, strict=True) if flag]
        assert sum(id_ in by_markers.end_ids for id_ in trained) == len(answers)


@pytest.mark.parametrize("name", ["phi3", "phi3_5"])
def test_a_template_with_something_behind_the_last_answer_alone_is_masked_in_every_turn(family, name):
    # Only the last answer is followed by an end of text, so prefixes do not match.
    tokenizer = family(name)
    by_markers, by_prefixes = encoders(tokenizer)
    conversation = TALKS["with a system message"]
    with pytest.raises(DataError, match="cannot be masked by prefixes"):
        by_prefixes.rows([conversation])
    (row,) = by_markers.rows([conversation])
    assert spans(tokenizer, row) == ["two<|end|>", "four<|end|>"]
    first = Conversation(conversation.messages[:2])
    (prompt,) = by_markers.prompts([first])
    assert row.ids[: len(prompt)] == prompt and row.trained[len(prompt)] and not any(row.trained[: len(prompt)])


@pytest.mark.parametrize("name", ["phi3", "lfm2_2_5_vl"])
def test_an_answer_of_which_the_template_drops_a_part_is_refused_and_not_trained_without_it(family, name):
    by_markers, _ = encoders(family(name))
    assert row_of(by_markers, TALKS["reasoning in each turn"]) is None
    by_markers, _ = encoders(family(name), train_on="last")
    writes_the_last_reasoning = name == "lfm2_2_5_vl"
    assert (row_of(by_markers, TALKS["reasoning in each turn"]) is not None) == writes_the_last_reasoning


def test_the_end_of_a_part_of_an_answer_is_not_taken_for_the_end_of_a_turn(family):
    # gpt-oss ends earlier answers with <|end|>, which does not end generation.
    tokenizer = family("gptoss")
    by_markers, _ = encoders(tokenizer)
    assert row_of(by_markers, TALKS["several turns"]) is None
    assert spans(tokenizer, row_of(by_markers, TALKS["one answer"])) == ["<|channel|>final<|message|>two<|return|>"]


@pytest.mark.parametrize("name", FAMILIES)
def test_other_text_of_the_training_template_is_told_once_and_not_trained(family, name, caplog):
    by_markers, _ = encoders(family(name), train_on="last")
    with caplog.at_level(logging.WARNING, "posttrain"):
        for conversation in [*TALKS.values(), *TALKS.values()]:
            row_of(by_markers, conversation)
    told = [record for record in caplog.records if "rendered prefixes" in record.message]
    assert len(told) == (name in OTHERWISE)


def test_a_template_has_markers_of_its_own_or_of_trl_or_none(family, trl_template):
    found = {name: training_template(ChatConfig(template="tokenizer"), family(name)) for name in FAMILIES}
    assert found["llama3"] == trl_template("llama3_training")
    assert [name for name in FAMILIES if found[name] == family(name).chat_template] == OWN_MARKERS
    assert [name for name in FAMILIES if found[name] is None] == UNKNOWN
    assert training_template(ChatConfig(), family("llama3")) is None


@pytest.mark.parametrize(
    "template",
    ["{{ messages | length / 0 }}", "{{ raise_exception('no') }}", "{{ messages[7].content }}", "{{ 1 + 'a' }}"],
)
def test_a_template_that_trl_cannot_try_out_has_no_markers(family, template):
    tokenizer = copy.deepcopy(family("llama3"))
    tokenizer.chat_template = template
    assert training_template(ChatConfig(template="tokenizer"), tokenizer) is None
