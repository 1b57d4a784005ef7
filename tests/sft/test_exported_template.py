"""A run's export, loaded without the toolkit, uses the chat template it was trained with."""

import shutil

import pytest
from transformers import AutoTokenizer

from posttrain.config.load import load_config
from posttrain.conversation.chatml import render, text
from posttrain.conversation.messages import parse_conversation
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train

MESSAGES = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "7"}]
# ChatML that always begins with the base's own system message.
TEMPLATE = (
    "{{ '<|im_start|>system\\nYou are a base.<|im_end|>\\n' }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture
def base(tiny_model, tmp_path):
    """The tiny model with its own chat template."""
    folder = tmp_path / "base"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def exported(config, name):
    """The folders the adapter can be loaded from."""
    train(load_config(config, SFTConfig, ["training.max_steps=3"]), name)
    run = config.parent / "runs" / name
    return [run, run / "checkpoint-3"]


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_an_adapter_and_its_checkpoints_have_the_template_of_training(write_config, base, system):
    config = write_config(model={"name": str(base)}, chat={"max_length": 256, "default_system": system})
    expected = text(render(parse_conversation(MESSAGES), default_system=system))
    for folder in exported(config, "run"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == expected


def test_an_adapter_trained_with_the_tokenizers_own_template_keeps_that(write_config, base):
    config = write_config(model={"name": str(base)}, chat={"max_length": 256, "template": "tokenizer"})
    for folder in exported(config, "run"):
        assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
