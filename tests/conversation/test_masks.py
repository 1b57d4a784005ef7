"""Encoding segments as ids: the mask covers the answers, and text never becomes a control token."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.conversation.chatml import Kind, render, render_prompt, text
from posttrain.conversation.encoder import HfTextEncoder
from posttrain.conversation.masks import TokenRow, encode_rows, trained_ends
from posttrain.conversation.messages import Conversation, Message

BYTE_LEVEL = ["smollm2_tokenizer", "qwen_like_tokenizer"]
ALL = [*BYTE_LEVEL, "metaspace_tokenizer"]


MISSING_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
"""Bytes that SmolLM2's vocabulary lacks; a character that contains one is encoded as U+FFFD."""


class Letters:
    """An encoder to code points that records its calls; control tokens have negative ids."""

    def __init__(self):
        self.calls = []

    def encode(self, texts):
        self.calls.append(list(texts))
        return [[ord(letter) for letter in each] for each in texts]

    def control_id(self, token):
        return {"<|im_start|>": -1, "<|im_end|>": -2}[token]


@pytest.fixture(scope="session", params=ALL)
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session", params=BYTE_LEVEL)
def byte_level(request):
    return request.getfixturevalue(request.param)


def spelled(tokenizer, content):
    missing = MISSING_BYTES if len(tokenizer) == 49152 else set()
    return "".join("\ufffd" if set(letter.encode()) & missing else letter for letter in content)


def encoded(segments, encoder):
    return encode_rows([segments], encoder)[0]


def talk(*contents):
    """A conversation in which user and assistant alternate."""
    roles = ("user", "assistant")
    return Conversation(tuple(Message(roles[i % 2], each) for i, each in enumerate(contents)))


def test_the_answer_and_its_end_token_are_trained_and_nothing_else():
    row = encoded(render(talk("A", "B")), Letters())
    user = [-1, *map(ord, "user\nA"), -2, ord("\n")]
    assert row.ids == [*user, -1, *map(ord, "assistant\nB"), -2, ord("\n")]
    assert row.trained == [False] * (len(user) + 1 + len("assistant\n")) + [True, True, False]


def test_an_answer_that_starts_with_a_newline_is_masked_like_any_other(tokenizer):
    encoder = HfTextEncoder(tokenizer)
    row = encoded(render(talk("A", "\n\nB")), encoder)
    prompt = encoded(render_prompt(talk("A")), encoder).ids
    answer, newline = encoder.encode(["\n\nB", "\n"])
    assert row.ids == [*prompt, *answer, encoder.control_id("<|im_end|>"), *newline]
    assert row.trained == [False] * len(prompt) + [True] * (len(answer) + 1) + [False] * len(newline)


def test_a_content_spelled_like_a_control_token_is_not_one():
    row = encoded(render(talk("<|im_end|>", "<|im_start|>")), Letters())
    assert [row.ids.count(-1), row.ids.count(-2)] == [2, 2]


def test_the_end_token_is_trained_even_if_it_is_the_padding_token(qwen_like_tokenizer):
    assert qwen_like_tokenizer.pad_token == "<|im_end|>"
    row = encoded(render(talk("A", "B")), HfTextEncoder(qwen_like_tokenizer))
    assert (row.ids[-2], row.trained[-2]) == (qwen_like_tokenizer.pad_token_id, True)


def test_no_beginning_of_text_token_is_added(smollm2_tokenizer):
    row = encoded(render(talk("A")), HfTextEncoder(smollm2_tokenizer))
    assert smollm2_tokenizer.decode(row.ids) == "<|im_start|>user\nA<|im_end|>\n"


def test_many_rows_are_encoded_by_one_call_in_which_each_text_occurs_once():
    encoder = Letters()
    rows = [render(talk("A", "B")), render(talk("B", "A")), []]
    assert encode_rows(rows, encoder) == [encoded(row, Letters()) for row in rows]
    assert encoder.calls == [["user\n", "A", "\n", "assistant\n", "B"]]
    assert encode_rows([], Letters()) == []


def test_ids_and_flags_of_different_length_are_refused():
    with pytest.raises(ValueError, match="2 ids, but 1 flags"):
        TokenRow([1, 2], [True])


def test_every_answer_has_one_end():
    row = encoded(render(talk("A", "B", "C", "")), Letters())
    assert trained_ends(row, [-2]) == 2


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_the_mask_covers_exactly_the_answers_and_their_ends(byte_level, conversations, data):
    conversation = data.draw(conversations)
    train_on = data.draw(st.sampled_from(["all", "last"]))
    # Plain answers, so that the expected text does not depend on the code under test.
    plain = [replace(m, reasoning=None, tool_calls=()) for m in conversation.messages]
    answers = [m for m in plain if m.role == "assistant"]
    answers = [m for m in (answers[-1:] if train_on == "last" else answers) if m.train]
    segments = render(Conversation(tuple(plain), conversation.tools), train_on=train_on)
    encoder = HfTextEncoder(byte_level)
    row = encoded(segments, encoder)
    trained = [id_ for id_, flag in zip(row.ids, row.trained, strict=True) if flag]
    assert byte_level.decode(trained) == "".join(spelled(byte_level, m.content) + "<|im_end|>" for m in answers)
    assert trained_ends(row, [encoder.control_id("<|im_end|>")]) == len(answers)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_each_turn_has_two_control_tokens_whatever_its_content(tokenizer, conversations, data):
    conversation = data.draw(conversations)
    segments = render(conversation)
    row = encoded(segments, HfTextEncoder(tokenizer))
    special = set(tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<|endoftext|>"]))
    turns = sum(segment.kind is Kind.CONTENT for segment in segments)
    assert sum(id_ in special for id_ in row.ids) == 2 * turns


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_the_ids_of_a_prompt_are_the_first_ids_of_the_whole(tokenizer, conversations, data):
    asked = data.draw(conversations)
    answer = Message("assistant", data.draw(st.text(max_size=5)))
    encoder = HfTextEncoder(tokenizer)
    prompt = encoded(render_prompt(asked), encoder).ids
    whole = encoded(render(replace(asked, messages=(*asked.messages, answer))), encoder).ids
    assert whole[: len(prompt)] == prompt


def whole_text_ids(tokenizer, segments):
    return tokenizer(text(segments), add_special_tokens=False)["input_ids"]


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_ids_are_those_of_the_whole_text_where_no_content_has_control_text_or_leading_whitespace(
    byte_level, conversations, data
):
    special = [str(t) for t in byte_level.added_tokens_decoder.values() if t.special]

    def clean(message):
        content = spelled(byte_level, message.content)
        for token in special:
            content = content.replace(token, "")
        # Two newlines separate tools from the system text; if that were empty, the content would start with them.
        return replace(message, content=content.lstrip() or "S", tool_calls=(), reasoning=None)

    conversation = data.draw(conversations)
    messages = tuple(clean(message) for message in conversation.messages)
    segments = render(Conversation(messages, conversation.tools))
    assert encoded(segments, HfTextEncoder(byte_level)).ids == whole_text_ids(byte_level, segments)


@pytest.mark.parametrize(
    ("name", "content", "equal"),
    [
        ("smollm2_tokenizer", " Hi", True),
        ("smollm2_tokenizer", "\nHi", True),
        ("smollm2_tokenizer", "\n\nHi", False),
        ("smollm2_tokenizer", "\n", False),
        ("smollm2_tokenizer", "  Hi", False),
        ("qwen_like_tokenizer", " Hi", True),
        ("qwen_like_tokenizer", "   ", True),
        ("qwen_like_tokenizer", "  Hi", True),
        ("qwen_like_tokenizer", "\nHi", False),
        ("qwen_like_tokenizer", "\n", False),
        ("smollm2_tokenizer", "a<|im_end|>", False),
        ("qwen_like_tokenizer", "a<|im_end|>", False),
        ("metaspace_tokenizer", "Hi", False),
    ],
)
def test_where_whole_text_tokenising_merges_across_the_header_or_finds_control_text(name, content, equal, request):
    tokenizer = request.getfixturevalue(name)
    segments = render(talk("A", content))
    ids = encoded(segments, HfTextEncoder(tokenizer)).ids
    assert (ids == whole_text_ids(tokenizer, segments)) is equal
