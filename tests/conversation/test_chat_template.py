"""The Jinja template writes what the toolkit's own ChatML writes, byte for byte."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import Tags, render, render_prompt, text
from posttrain.conversation.messages import Conversation, parse_conversation
from posttrain.conversation.saved_template import chatml_template

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "\"é\"\n<x> & 'y'",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    },
    {"name": "stop"},
]
ASKED = {"role": "user", "content": " hi \n"}
CALL = {"type": "function", "function": {"name": "find", "arguments": {"n": 1, "s": "ü<>&'\"", "none": None}}}
STOP = {"name": "stop", "arguments": {}}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [ASKED],
    "system and answer": [{"role": "system", "content": "  sys\n"}, ASKED, {"role": "assistant", "content": "\nyo "}],
    "calls without text": [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL, STOP]}],
    "calls after text": [ASKED, {"role": "assistant", "content": "well", "tool_calls": [STOP, CALL]}],
    "results together": [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2\n"},
        {"role": "assistant", "content": "done"},
        {"role": "tool", "content": "3"},
    ],
    "reasoning": [
        ASKED,
        {"role": "assistant", "content": "\n\nfirst", "reasoning_content": "\n\nhm\n", "train": False},
        ASKED,
        {"role": "assistant", "content": "\nlast", "reasoning": "", "tool_calls": [STOP]},
    ],
    "an answer generated with tags": [
        ASKED,
        {"role": "assistant", "content": "a]<b>x</b>"},
        ASKED,
        {"role": "assistant", "content": "[\na\n</a><b>x</b>"},
    ],
    "content in parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "results first": [{"role": "tool", "content": "r"}, ASKED],
}
SYSTEMS = [None, "", "be \"good\"\\n\n\té😀 {{ x }} {% if %} 'q'"]

TAGS: list[dict[str, Any]] = [
    {},
    {"reasoning_tags": {"open": "<a>", "close": "\n</a>"}, "solution_tags": {"open": "<b>", "close": "</b>\n"}},
    {"reasoning_tags": {"open": "[\n", "close": "]", "opened_in_prompt": True}},
]


def untrained(conversation: Conversation) -> Conversation:
    """The same without trained turns, so that they need no reasoning."""
    return replace(conversation, messages=tuple(replace(each, train=False) for each in conversation.messages))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("system", SYSTEMS, ids=["no default", "empty default", "default"])
def test_a_rendered_conversation_and_prompt_are_those_of_the_toolkit(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], system: str | None
):
    for tools, history, tags in itertools.product([None, TOOLS], ["keep", "drop"], TAGS):
        chat = ChatConfig.model_validate(
            {"default_system": system, "reasoning_history": history, "train_on": "last", **tags}
        )
        template, conversation = chatml_template(chat), parse_conversation(messages, tools)
        settings: dict[str, Any] = {"default_system": system, "reasoning_history": history, "tags": Tags.of(chat)}
        expected = [
            text(render(untrained(conversation), **settings)),
            text(render_prompt(conversation, **settings)),
        ]
        written = [
            tokenizer.apply_chat_template(
                messages, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=prompt
            )
            for prompt in (False, True)
        ]
        assert written == expected
