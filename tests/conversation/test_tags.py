"""Tags of one's own around the reasoning and the solution of an answer."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import QWEN, Tags, render, render_prompt, text
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.dataserver.graders.number_match import NumberMatch
from posttrain.dataserver.graders.tag_format import TagFormat
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

REASONING = {"open": "<start_working_out>", "close": "<end_working_out>"}
SOLUTION = {"open": "<SOLUTION>", "close": "</SOLUTION>"}
OPENED = {**REASONING, "opened_in_prompt": True}

ASKED = Message("user", "6 × 7?")
ANSWER = Message("assistant", "42", "\nsix\nsevens ")
WRITTEN = "<start_working_out>\nsix\nsevens <end_working_out><SOLUTION>42</SOLUTION>"


def tags(reasoning=None, solution=None):
    return Tags.of(ChatConfig(reasoning_tags=reasoning, solution_tags=solution))


def trained_text(segments):
    return text(segment for segment in segments if segment.trained)


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_and_solution_are_written_between_the_tags_of_the_config(opened):
    own = tags(OPENED if opened else REASONING, SOLUTION)
    segments = render(Conversation((ASKED, ANSWER)), tags=own)
    prompt = render_prompt(Conversation((ASKED,)), tags=own)
    header = "<|im_start|>assistant\n" + "<start_working_out>" * opened
    assert text(prompt) == f"<|im_start|>user\n6 × 7?<|im_end|>\n{header}"
    assert text(segments) == f"<|im_start|>user\n6 × 7?<|im_end|>\n<|im_start|>assistant\n{WRITTEN}<|im_end|>\n"
    assert segments[: len(prompt)] == prompt
    assert trained_text(segments) == WRITTEN.removeprefix("<start_working_out>" * opened) + "<|im_end|>"


@pytest.mark.parametrize("opened", [False, True])
def test_graders_with_the_same_tags_read_what_is_trained(opened):
    segments = render(Conversation((ASKED, ANSWER)), tags=tags(OPENED if opened else REASONING, SOLUTION))
    item = GradeInput(trained_text(segments).removesuffix("<|im_end|>"), None, gold="42")
    assert TagFormat(opened_in_prompt=opened).score(item) == 1
    assert NumberMatch().score_text(item.completion, item) == 1


def test_the_tags_in_the_docs_are_a_config():
    page = (Path(__file__).parents[2] / "docs" / "chatml-and-masks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\nchat:\n(.*?)```", page, re.DOTALL)
    assert Tags.of(ChatConfig.model_validate(yaml.safe_load(block))) == tags(OPENED, SOLUTION)
    assert WRITTEN.replace("\nsix\nsevens ", "6 × 7") in page


def test_without_tags_of_ones_own_reasoning_is_written_as_qwen_does():
    assert tags() == QWEN
    assert QWEN.written(ANSWER, with_reasoning=True) == "<think>\nsix\nsevens \n</think>\n\n42"


@pytest.mark.parametrize("opened", [False, True])
def test_an_answer_that_was_generated_with_tags_is_written_as_it_was_generated(opened):
    own = tags(OPENED if opened else REASONING, SOLUTION)
    generated = WRITTEN.removeprefix("<start_working_out>" * opened)
    talk = Conversation((ASKED, Message("assistant", generated), ASKED, ANSWER))
    assert text(render(talk, tags=own)).count(WRITTEN) == 2
    assert trained_text(render(talk, tags=own)) == 2 * f"{generated}<|im_end|>"


def test_an_answer_that_calls_a_tool_is_no_solution():
    call = Message("assistant", "Let me see.", tool_calls=(ToolCall("add", {}),))
    assert "SOLUTION" not in text(render(Conversation((ASKED, call)), tags=tags(solution=SOLUTION)))


def test_where_the_prompt_opens_reasoning_a_trained_answer_without_it_is_refused():
    own, plain = tags(OPENED), Message("assistant", "42")
    with pytest.raises(DataError, match=r"messages\[1\] has no reasoning, but .*opened_in_prompt begins every answer"):
        render(Conversation((ASKED, plain)), tags=own)
    talk = Conversation((ASKED, plain, ASKED, ANSWER))
    assert "<|im_start|>assistant\n42<|im_end|>" in text(render(talk, tags=own, train_on="last"))


ALL_TAGS = st.builds(
    Tags,
    st.sampled_from(["<think>\n", "[", "<a>"]),
    st.sampled_from(["\n</think>\n\n", "]", "</a>\n"]),
    st.booleans(),
    st.sampled_from(["", "{"]),
    st.just("}"),
)


@settings(deadline=None, max_examples=100)
@given(data=st.data(), own=ALL_TAGS)
def test_a_prompt_is_the_strict_beginning_of_the_whole_conversation_with_any_tags(conversations, data, own):
    asked = data.draw(conversations)
    whole = Conversation((*asked.messages, Message("assistant", "x", "y")), asked.tools)
    for history in ("keep", "drop"):
        prompt = render_prompt(asked, reasoning_history=history, tags=own)
        full = render(whole, train_on="last", reasoning_history=history, tags=own)
        assert full[: len(prompt)] == prompt and len(full) > len(prompt)


@pytest.mark.parametrize("opened", [False, True])
def test_prompts_and_rows_of_a_model_have_the_tags_of_its_config(tiny_tokenizer, opened):
    chat = ChatConfig(reasoning_tags=OPENED if opened else REASONING, solution_tags=SOLUTION)
    encoder = conversation_encoder(chat, tiny_tokenizer)
    (row,), (prompt,) = encoder.rows([Conversation((ASKED, ANSWER))]), encoder.prompts([Conversation((ASKED,))])
    assert row.ids[: len(prompt)] == prompt
    assert row.trained == [False] * len(prompt) + [True] * (len(row.ids) - len(prompt) - 1) + [False]
