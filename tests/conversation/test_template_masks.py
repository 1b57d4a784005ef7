"""Masks from a tokenizer's own template, and ChatML compared with the templates that it must agree with."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.conversation.chatml import render, render_prompt, text
from posttrain.conversation.encoder import HfTextEncoder
from posttrain.conversation.masks import encode_rows
from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.conversation.templates import template_messages, template_row
from posttrain.errors import DataError

TALK = Conversation(
    (
        Message("system", "Be kind."),
        Message("user", "A"),
        Message("assistant", "B"),
        Message("user", "C"),
        Message("assistant", "D\n"),
    )
)


def applier(tokenizer, template=None, tools=()):
    def apply(messages, add_generation_prompt):
        return tokenizer.apply_chat_template(
            messages,
            tools=list(tools) or None,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            return_dict=False,
        )

    return apply


def letters(messages, add_generation_prompt):
    """A template that writes code points: `r:content;` and a newline per message, with r the role's first letter."""
    written = "".join(f"{m['role'][0]}:{m['content']};\n" for m in messages)
    return [ord(letter) for letter in written + ("a:" if add_generation_prompt else "")]


def trained_letters(row):
    return "".join(chr(id_) for id_, flag in zip(row.ids, row.trained, strict=True) if flag)


def test_the_trained_span_ends_with_the_first_end_token():
    row = template_row(TALK, letters, end_ids={ord(";")})
    assert trained_letters(row) == "B;D\n;"
    assert row.ids == letters(template_messages(TALK), False)


def test_without_an_end_token_all_that_the_answer_added_is_trained():
    assert trained_letters(template_row(TALK, letters, end_ids=())) == "B;\nD\n;\n"


def test_only_the_last_turn_or_only_marked_turns_are_trained():
    assert trained_letters(template_row(TALK, letters, end_ids={ord(";")}, train_on="last")) == "D\n;"
    marked = replace(TALK.messages[2], train=False)
    messages = (*TALK.messages[:2], marked, *TALK.messages[3:])
    assert trained_letters(template_row(Conversation(messages), letters, end_ids={ord(";")})) == "D\n;"


def test_a_default_system_message_goes_through_the_template_too():
    row = template_row(Conversation(TALK.messages[1:]), letters, end_ids=(), default_system="S")
    assert "".join(map(chr, row.ids)).startswith("s:S;\nu:A;\n")


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_first_difference():
    def forgetful(messages, add_generation_prompt):
        older = [{**m, "content": "B..."} if m["content"] == "B" and m is not messages[-1] else m for m in messages]
        return letters(older, add_generation_prompt)

    with pytest.raises(DataError, match=r"messages\[2\] and the complete one differ at token \d+ \(id 59 and id 46"):
        template_row(TALK, forgetful, end_ids={ord(";")})
    assert trained_letters(template_row(TALK, forgetful, end_ids={ord(";")}, train_on="last")) == "D\n;"


def test_a_template_whose_prompt_is_no_prefix_is_refused():
    def eager(messages, add_generation_prompt):
        return letters(messages, add_generation_prompt) + [0] * 9 * add_generation_prompt

    with pytest.raises(DataError, match=r"the prompt of messages\[2\] and the prompt with its answer differ"):
        template_row(TALK, eager, end_ids=())


def test_a_prompt_longer_than_the_answered_conversation_is_refused_not_trained():
    def greedy(messages, add_generation_prompt):
        return [1] * (len(messages) + 5 * add_generation_prompt)

    with pytest.raises(DataError, match=r"differ at token 3 \(id 1 and id nothing"):
        template_row(TALK, greedy, end_ids=())


def test_an_answer_without_a_prompt_is_refused():
    with pytest.raises(DataError, match=r"messages\[0\]"):
        template_row(Conversation((Message("assistant", "A"),)), letters, end_ids=())


def closing(messages, add_generation_prompt):
    """Like `letters`, with a `$` at the end unless a generation prompt is added."""
    return letters(messages, add_generation_prompt) + [ord("$")] * (not add_generation_prompt)


def markers(pattern):
    """Markers that enclose the ids at each `T` of the pattern."""
    return lambda messages, ids: [letter == "T" for letter in pattern.ljust(len(ids))[: len(ids)]]


# Newlines are shown as `/`. The answers' headers are marked too, as in some templates.
WRITTEN = "s:Be kind.;/u:A;/a:B;/u:C;/a:D/;/$"
MARKED = "                 TTTTT     TTTTTTT"
TRAINED = "                   TT        TTT  "


def test_markers_give_the_mask_where_prefixes_do_not_agree():
    assert "".join(map(chr, closing(template_messages(TALK), False))).replace("\n", "/") == WRITTEN
    with pytest.raises(DataError, match=r"up to messages\[2\] and the complete one differ"):
        template_row(TALK, closing, end_ids={ord(";")})
    row = template_row(TALK, closing, end_ids={ord(";")}, marked=markers(MARKED))
    assert trained_letters(row) == "B;D\n;"
    assert "".join("T" if flag else " " for flag in row.trained) == TRAINED
    last = template_row(TALK, closing, end_ids={ord(";")}, marked=markers(MARKED), train_on="last")
    assert trained_letters(last) == "D\n;"


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "                 TTT       TTTTTTT",  # without the end of the first answer
        "                 TT TT     TTTTTTT",  # without its first letter
        "                 TTTTTTTTTTTTTTTTT",  # including the next user turn
    ],
)
def test_markers_that_do_not_enclose_an_answer_and_its_end_are_not_relied_on(pattern):
    with pytest.raises(DataError, match=r"up to messages\[2\] and the complete one differ"):
        template_row(TALK, closing, end_ids={ord(";")}, marked=markers(pattern))


def test_an_answer_that_markers_do_not_enclose_whole_is_not_trained_in_part():
    talk = Conversation((*TALK.messages[:2], replace(TALK.messages[2], content="why B"), *TALK.messages[3:]))

    def forgetful(messages, add_generation_prompt):
        older = [{**m, "content": m["content"].removeprefix("why ")} for m in messages[:-1]]
        return closing([*older, messages[-1]], add_generation_prompt)

    row = template_row(talk, forgetful, end_ids={ord(";")}, marked=markers(MARKED))
    assert trained_letters(row) == "B;D\n;"
    with pytest.raises(DataError, match=r"does not write the content of messages\[2\] as it is"):
        template_row(talk, forgetful, end_ids={ord(";")}, marked=markers(MARKED), spelled=spelled)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (Message("assistant", "B", reasoning="Hm."), "reasoning"),
        (Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1}),)), "call of a tool"),
    ],
)
def test_an_answer_of_which_the_template_writes_no_reasoning_or_call_is_refused(answer, what):
    talk = Conversation((TALK.messages[1], answer))
    with pytest.raises(DataError, match=rf"does not write the {what} of messages\[1\]"):
        template_row(talk, letters, end_ids={ord(";")}, spelled=spelled)


def spelled(text):
    """The letters that `letters` writes as code points, without white space."""
    return "".join("".join(text if isinstance(text, str) else map(chr, text)).split())


@pytest.mark.parametrize("gap", [19, 20])
def test_markers_and_prefixes_that_disagree_are_refused(gap):
    ends = {ord(";")}
    assert trained_letters(template_row(TALK, letters, end_ids=ends, marked=markers(MARKED))) == "B;D\n;"
    with pytest.raises(DataError, match=r"markers leave out tokens of messages\[2\]"):
        template_row(TALK, letters, end_ids=ends, marked=markers(f"{MARKED[:gap]} {MARKED[gap + 1 :]}"))


def test_a_conversation_turns_back_into_plain_messages():
    calls = (ToolCall("add", {"a": 1}),)
    messages = Conversation(
        (
            Message("assistant", "", "Hm", calls, train=False),
            Message("tool", "1", name="add"),
            Message("user", "A"),
        )
    )
    function = {"name": "add", "arguments": {"a": 1}}
    assert template_messages(messages) == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "content": "1", "name": "add"},
        {"role": "user", "content": "A"},
    ]


def test_the_template_of_smollm2_gives_the_row_that_chatml_gives(smollm2_tokenizer):
    row = template_row(TALK, applier(smollm2_tokenizer), end_ids={2})
    assert [row] == encode_rows([render(TALK)], HfTextEncoder(smollm2_tokenizer))


def test_the_template_of_qwen3_is_refused_where_it_forgets_reasoning(smollm2_tokenizer, trl_template):
    apply = applier(smollm2_tokenizer, trl_template("qwen3"))
    with pytest.raises(DataError, match="train_on: last"):
        template_row(TALK, apply, end_ids={2})
    row = template_row(TALK, apply, end_ids={2}, train_on="last")
    trained = [id_ for id_, flag in zip(row.ids, row.trained, strict=True) if flag]
    assert smollm2_tokenizer.decode(trained) == "<think>\n\n</think>\n\nD\n<|im_end|>"


def rendered(tokenizer, conversation, template=None, prompt=False):
    return tokenizer.apply_chat_template(
        template_messages(conversation),
        tools=list(conversation.tools) or None,
        chat_template=template,
        add_generation_prompt=prompt,
        tokenize=False,
    )


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_the_text_is_that_of_the_smollm2_template(smollm2_tokenizer, conversations, data):
    drawn = data.draw(conversations)
    messages = [Message(m.role, m.content) for m in drawn.messages if m.role in ("user", "assistant")]
    talk = Conversation((Message("system", data.draw(st.text(max_size=4))), *messages))
    assert text(render(talk)) == rendered(smollm2_tokenizer, talk)
    assert text(render_prompt(talk)) == rendered(smollm2_tokenizer, talk, prompt=True)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_text_is_that_of_the_qwen2_5_template_given_a_system_message(
    smollm2_tokenizer, trl_template, conversations, data
):
    drawn = data.draw(conversations)
    messages = [replace(m, reasoning=None) for m in drawn.messages if m.role != "system"]
    talk = Conversation((Message("system", "S"), *messages), drawn.tools)
    template = trl_template("qwen2_5")
    assert text(render(talk)) == rendered(smollm2_tokenizer, talk, template)
    assert text(render_prompt(talk)) == rendered(smollm2_tokenizer, talk, template, prompt=True)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_text_is_that_of_the_qwen3_template_with_and_without_a_system_message(
    smollm2_tokenizer, trl_template, conversations, data
):
    drawn = data.draw(conversations)
    # The template drops the reasoning of earlier turns, and all reasoning if there is no user message.
    messages = [*drawn.messages, Message("user", "last question")]
    for m in data.draw(conversations).messages:
        if m.role == "assistant":
            messages.append(replace(m, reasoning="x" + (m.reasoning or "")))
        elif m.role == "tool":
            messages.append(m)
    talk = Conversation(tuple(messages), drawn.tools)
    template = trl_template("qwen3")
    ours = render(talk, train_on="last", reasoning_history="drop") if messages[-1].role == "assistant" else None
    if ours is not None:
        assert text(ours) == rendered(smollm2_tokenizer, talk, template)
    prompt = render_prompt(talk, reasoning_history="drop")
    assert text(prompt) == rendered(smollm2_tokenizer, talk, template, prompt=True)
