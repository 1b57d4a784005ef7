"""ChatML as a chat template, for programs that do not know the toolkit: it goes into a model's tokenizer files.

It writes what `posttrain.conversation.chatml` writes, with what the config chose fixed in its first line. Two things it
cannot do: whoever tokenises its text takes `<|im_end|>` in a message for the control token, and tool arguments
that come as JSON text are written as they are.
"""

import json
from importlib.resources import files
from typing import Any

from posttrain.config.sections.chat import ChatConfig


def use_trained_template(tokenizer: Any, chat: ChatConfig) -> None:
    """Have a tokenizer's files say what was trained; where that is its own template, it stays."""
    if chat.template == "chatml":
        tokenizer.chat_template = chatml_template(chat)


def chatml_template(chat: ChatConfig) -> str:
    """The Jinja source for `chat`, whose template must be chatml."""
    # A JSON string is a Jinja one too, unless a character beyond U+FFFF were split into two escapes.
    system = "none" if chat.default_system is None else json.dumps(chat.default_system, ensure_ascii=False)
    settings = f"{{%- set default_system = {system} %}}{{%- set reasoning_history = '{chat.reasoning_history}' %}}\n"
    return settings + files("posttrain.conversation").joinpath("chatml.jinja").read_text(encoding="utf-8")
