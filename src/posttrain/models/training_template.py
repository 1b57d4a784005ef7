"""A tokenizer's own chat template with generation markers, which say what of its output the assistant wrote."""

import re
from typing import Any

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.encoder import TEMPLATE_FAULTS

_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


def training_template(chat: ChatConfig, tokenizer: Any) -> str | None:
    """The template where it has markers itself, or TRL's copy of it that has; None for ChatML, and without either.

    TRL knows the templates of some model families, and changed more than the markers in a few of them, so whoever uses
    its copy looks whether it writes the same.
    """
    if chat.template != "tokenizer":
        return None
    own = tokenizer.chat_template
    if isinstance(own, str) and _MARKER.search(own):
        return own
    from jinja2 import TemplateError
    from trl import get_training_chat_template

    try:
        return get_training_chat_template(tokenizer)
    except (TemplateError, *TEMPLATE_FAULTS):  # a family that it does not know, or a template that it cannot try out
        return None
