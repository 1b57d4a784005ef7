"""The templates that TRL and unsloth ship: what is trained of a conversation, and the table of them in the docs.

The environment variable TEST_TOKENIZERS names a folder with a real tokenizer in each of its folders, for the same
tests.
"""

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import chat_templates
import pytest
import yaml
from chat_templates import CONVERSATIONS, Family, Tried
from transformers import AutoTokenizer

from posttrain.config.load import load_config
from posttrain.conversation.masks import TokenRow
from posttrain.conversation.messages import Conversation
from posttrain.conversation.templates import template_messages
from posttrain.inference.config import InferenceConfig

MASKS = {"both", "markers", "prefixes"}
EACH_CONVERSATION = pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)


@pytest.fixture(scope="module")
def families() -> list[Family]:
    return chat_templates.families()


@EACH_CONVERSATION
def test_of_each_conversation_with_a_mask_the_answers_are_trained_and_nothing_else(
    families: list[Family], conversation: Conversation
):
    found = [family.mask(conversation) for family in families]
    proven = [tried for mask, tried in found if mask in MASKS]
    assert len(proven) > 10
    for tried in proven:
        require_answers(tried, conversation)


def require_answers(tried: Tried, conversation: Conversation) -> None:
    """Compare a row with the template's own text and ids, message by message."""
    messages, tokenizer = template_messages(conversation), tried.tokenizer
    options: dict[str, Any] = {"tools": list(conversation.tools) or None, "return_dict": False}
    (row,) = tried.encoder.rows([conversation])
    assert row.ids == tokenizer.apply_chat_template(messages, **options)
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for index, (start, stop) in zip(answers, spans(row), strict=True):
        asked = Conversation(conversation.messages[:index], conversation.tools)
        assert tried.encoder.prompts([asked]) == [row.ids[:start]]
        ends = [id_ in tried.encoder.end_ids for id_ in row.ids[start:stop]]
        assert ends == [False] * (stop - start - 1) + [True]
        prompt, answered = (
            tokenizer.apply_chat_template(messages[:last], add_generation_prompt=prompted, tokenize=False, **options)
            for last, prompted in ((index, True), (index + 1, False))
        )
        assert answered.startswith(prompt)
        end = tokenizer.convert_ids_to_tokens(row.ids[stop - 1])
        written, end_there, _ = answered[len(prompt) :].partition(end)
        assert end_there and spelled(tokenizer, written) == spelled(tokenizer, row.ids[start : stop - 1])
        assert spelled(tokenizer, messages[index]["content"]) in spelled(tokenizer, written)


def spans(row: TokenRow) -> Iterator[tuple[int, int]]:
    """Where each run of trained tokens begins and ends."""
    pairs = pairwise([False, *row.trained, False])
    edges = [at for at, (before, after) in enumerate(pairs) if before != after]
    return zip(edges[::2], edges[1::2], strict=True)


def spelled(tokenizer: Any, text: str | list[int]) -> str:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if isinstance(text, str) else text
    return tokenizer.decode(ids, skip_special_tokens=True)


def test_the_table_in_the_docs_is_up_to_date(families: list[Family]):
    written = chat_templates.PAGE.read_text(encoding="utf-8")
    assert chat_templates.rendered(families) == written, "out of date: python docs/chat_templates.py"


def test_the_ends_and_starts_of_turns_are_those_of_the_families(families: list[Family]):
    found = {}
    for family in families:
        tokens = family.plain.tokenizer.convert_ids_to_tokens
        encoder = family.plain.encoder
        found[family.name] = set(tokens(sorted(encoder.end_ids))) - {"</s>"}, set(tokens(sorted(encoder.start_ids)))
    assert found["qwen3"] == ({"<|im_end|>"}, {"<|im_start|>"})
    assert found["gemma3"] == ({"<end_of_turn>"}, {"<start_of_turn>"})
    assert found["llama3_1"] == ({"<|eot_id|>"}, {"<|start_header_id|>"})
    assert found["phi3"] == ({"<|end|>"}, {"<|user|>", "<|assistant|>"})
    assert found["glm4moe"] == (set(), {"<|user|>", "<|assistant|>"})
    assert found["mistral"] == (set(), {"[INST]"})


def test_the_config_in_the_docs_is_one(tmp_path: Path):
    (block,) = re.findall(r"```yaml\n(.*?)```", chat_templates.PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine.jinja").write_text("{{ messages }}{{ enable_thinking }}")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"model": {"name": "tiny"}, **yaml.safe_load(block)}))
    chat = load_config(tmp_path / "run.yaml", InferenceConfig).chat
    assert chat.template_variables == {"enable_thinking": False}


REAL = os.environ.get("TEST_TOKENIZERS")
if REAL is not None:
    FOLDERS = sorted(path for path in Path(REAL).iterdir() if path.is_dir())
    assert FOLDERS, f"TEST_TOKENIZERS: there is no folder in {REAL}"

    @pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
    @EACH_CONVERSATION
    def test_real_tokenizers_give_the_same(folder: Path, conversation: Conversation):
        tried = Tried.of(AutoTokenizer.from_pretrained(folder))
        if tried.mask(conversation) in MASKS:
            require_answers(tried, conversation)
