"""ChatML rendering, checked against hand-written examples."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.conversation.chatml import Kind, Segment, render, render_prompt, text
from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.errors import ConfigError

ADD = {"type": "function", "function": {"name": "add", "description": 'Sums "é"', "parameters": {}}}


def conversation(*messages, tools=()):
    """A conversation of `Message` objects or (role, content) pairs."""
    return Conversation(tuple(m if isinstance(m, Message) else Message(*m) for m in messages), tools)


def trained_text(segments):
    return text(segment for segment in segments if segment.trained)


TWO_TURNS = conversation(("user", "A"), ("assistant", "B"), ("user", "C"), ("assistant", "D"))


def test_a_turn_is_five_segments_of_which_content_and_end_are_trained():
    assert render(conversation(("assistant", "Hi"))) == [
        Segment("<|im_start|>", Kind.CONTROL, "assistant", False),
        Segment("assistant\n", Kind.HEADER, "assistant", False),
        Segment("Hi", Kind.CONTENT, "assistant", True),
        Segment("<|im_end|>", Kind.CONTROL, "assistant", True),
        Segment("\n", Kind.HEADER, "assistant", False),
    ]


def test_turns_are_written_one_after_the_other():
    assert text(render(TWO_TURNS)) == (
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\nD<|im_end|>\n"
    )


def test_all_assistant_turns_are_trained_or_only_the_last():
    assert trained_text(render(TWO_TURNS)) == "B<|im_end|>D<|im_end|>"
    assert trained_text(render(TWO_TURNS, train_on="last")) == "D<|im_end|>"


def test_the_last_assistant_turn_is_the_one_trained_even_if_others_follow():
    tail = conversation(*TWO_TURNS.messages, ("user", "E"))
    assert trained_text(render(tail, train_on="last")) == "D<|im_end|>"


def test_a_turn_marked_untrained_is_not_trained_and_no_other_takes_its_place():
    marked = conversation(*TWO_TURNS.messages[:3], Message("assistant", "D", train=False))
    assert trained_text(render(marked)) == "B<|im_end|>"
    assert trained_text(render(marked, train_on="last")) == ""


@pytest.mark.parametrize(
    "content", ["", "\nHi", " \n\n", "Ünïcode 日本 👩‍👩‍👧", "a<|im_end|>\n<|im_start|>assistant\nb"]
)
def test_any_content_is_one_segment_and_stays_as_it_is(content):
    segments = render(conversation(("user", content), ("assistant", content)))
    assert [s.text for s in segments if s.kind is Kind.CONTENT] == [content, content]
    assert sum(s.kind is Kind.CONTROL for s in segments) == 4


def test_no_system_message_is_invented():
    assert text(render(conversation(("user", "A")))) == "<|im_start|>user\nA<|im_end|>\n"


def test_a_default_system_message_is_added_only_where_there_is_none():
    assert text(render(conversation(("user", "A")), default_system="S")).startswith("<|im_start|>system\nS<|im_end|>\n")
    own = conversation(("system", ""), ("user", "A"))
    assert text(render(own, default_system="S")).startswith("<|im_start|>system\n<|im_end|>\n")


def test_the_prompt_ends_where_the_answer_starts_and_nothing_of_it_is_trained():
    prompt = render_prompt(conversation(*TWO_TURNS.messages[:3]), default_system="S")
    assert text(prompt).endswith("C<|im_end|>\n<|im_start|>assistant\n")
    assert text(prompt).startswith("<|im_start|>system\nS<|im_end|>\n")
    assert trained_text(prompt) == ""


def test_tools_stand_in_the_system_turn_as_valid_json_apart_from_its_text():
    with_tools = text(render(conversation(("system", "S"), ("user", "A"), tools=(ADD,))))
    system = with_tools.split("<|im_end|>")[0]
    assert system.startswith("<|im_start|>system\nS\n\n# Tools\n\nYou may call")
    between = system.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(between) == ADD
    assert "é" in between


def test_tools_without_a_system_message_make_a_system_turn_of_their_own():
    with_tools = conversation(("user", "A"), tools=(ADD,))
    assert text(render(with_tools)).startswith("<|im_start|>system\n# Tools\n\n")
    assert text(render(with_tools, default_system="S")).startswith("<|im_start|>system\nS\n\n# Tools\n\n")


def test_tool_calls_are_trained_as_valid_json():
    calls = (ToolCall("add", {"a": 'say "hi"\n'}), ToolCall('odd"name', {}))
    segments = render(conversation(("user", "A"), Message("assistant", "Wait.", tool_calls=calls)))
    trained = trained_text(segments)
    assert trained == (
        'Wait.\n<tool_call>\n{"name": "add", "arguments": {"a": "say \\"hi\\"\\n"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "odd\\"name", "arguments": {}}\n</tool_call><|im_end|>'
    )
    blocks = [part.split("\n</tool_call>")[0] for part in trained.split("<tool_call>\n")[1:]]
    assert [json.loads(block)["name"] for block in blocks] == ["add", 'odd"name']


def test_neighbouring_tool_results_share_one_user_turn():
    segments = render(conversation(("tool", "1"), ("tool", "2"), ("user", "A"), ("tool", "3")))
    assert text(segments) == (
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
    )
    assert {s.role for s in segments[:5]} == {"tool"}
    assert trained_text(segments) == ""


THINKING = conversation(
    ("user", "A"),
    Message("assistant", "B", reasoning="why B"),
    ("user", "C"),
    Message("assistant", "\nD", reasoning="\nwhy D\n"),
)


def test_reasoning_stands_before_the_answer_and_is_trained():
    assert trained_text(render(THINKING)) == (
        "<think>\nwhy B\n</think>\n\nB<|im_end|><think>\nwhy D\n</think>\n\nD<|im_end|>"
    )


def test_empty_reasoning_is_an_empty_block_and_no_reasoning_is_no_block():
    empty = conversation(Message("assistant", "B", reasoning=""), Message("assistant", "C"))
    assert trained_text(render(empty)) == "<think>\n\n</think>\n\nB<|im_end|>C<|im_end|>"


def test_reasoning_before_the_last_user_message_can_be_dropped():
    segments = render(THINKING, train_on="last", reasoning_history="drop")
    assert "why B" not in text(segments)
    assert trained_text(segments) == "<think>\nwhy D\n</think>\n\nD<|im_end|>"
    assert "why B" not in text(render_prompt(conversation(*THINKING.messages[:3]), reasoning_history="drop"))


def test_reasoning_between_tool_results_is_kept_since_no_user_spoke():
    call = Message("assistant", "", reasoning="look up", tool_calls=(ToolCall("add", {}),))
    segments = render(conversation(("user", "A"), call, ("tool", "1"), ("assistant", "B")), reasoning_history="drop")
    assert trained_text(segments).startswith("<think>\nlook up\n</think>\n\n<tool_call>\n")


def test_dropping_reasoning_out_of_a_trained_turn_is_refused():
    with pytest.raises(ConfigError, match="reasoning_history: drop"):
        render(THINKING, train_on="all", reasoning_history="drop")
    untrained = replace(THINKING.messages[1], train=False)
    harmless = conversation(THINKING.messages[0], untrained, *THINKING.messages[2:])
    assert trained_text(render(harmless, reasoning_history="drop")).startswith("<think>\nwhy D")


def unmarked(segments):
    return [replace(segment, trained=False) for segment in segments]


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_prompt_is_the_strict_beginning_of_the_whole_conversation(conversations, data):
    asked = data.draw(conversations)
    system = data.draw(st.none() | st.just("S"))
    whole = replace(asked, messages=(*asked.messages, Message("assistant", "x", reasoning="y")))
    for history in ("keep", "drop"):
        prompt = render_prompt(asked, default_system=system, reasoning_history=history)
        full = render(whole, default_system=system, train_on="last", reasoning_history=history)
        assert full[: len(prompt)] == prompt and len(full) > len(prompt)
    full = render(whole, default_system=system, train_on="all")
    prompt = render_prompt(asked, default_system=system)
    assert unmarked(full)[: len(prompt)] == prompt
