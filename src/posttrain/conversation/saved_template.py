"""The chat template that is saved with trained weights: it writes for other programs what was trained."""

import json
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import Tags

_DEFAULTS = "{#- The next line gives the variables their values in training, unless others are given. #}\n"


def use_trained_template(tokenizer: Any, chat: ChatConfig) -> None:
    """Set the tokenizer's chat template to the one in `chat`, with the variables of training as defaults."""
    if chat.template == "chatml":
        tokenizer.chat_template = chatml_template(chat)
        return
    own = chat.own_template or tokenizer.chat_template
    if chat.template_variables and isinstance(own, dict):  # one template for each purpose
        own = {name: with_defaults(text, chat.template_variables) for name, text in own.items()}
    elif chat.template_variables:
        own = with_defaults(own, chat.template_variables)
    tokenizer.chat_template = own


def with_defaults(template: str, variables: dict[str, Any]) -> str:
    """The template with defaults for `variables`, in place of those that an earlier training gave it."""
    parts = [
        f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif %}}"
        for name, value in variables.items()
    ]
    return _DEFAULTS + "".join(parts) + "\n" + without_defaults(template)[1]


def without_defaults(template: str) -> tuple[str, str]:
    """The lines that `with_defaults` put before a template, and the template."""
    if not template.startswith(_DEFAULTS):
        return "", template
    line, _, rest = template.removeprefix(_DEFAULTS).partition("\n")
    return f"{_DEFAULTS}{line}\n", rest


def _literal(value: Any) -> str:
    """A JSON value as Jinja writes it: on one line, and with its own words for null, true and false."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    # A JSON string is a Jinja string too, as long as no character beyond U+FFFF is split into two escapes.
    return json.dumps(value, ensure_ascii=False)


def chatml_template(chat: ChatConfig) -> str:
    """The Jinja source that writes the same ChatML for other programs; `chat.template` must be chatml.

    It has two limits: `<|im_end|>` in a message is tokenised as the control token, and tool arguments that come as JSON
    text are written unchanged.
    """
    settings = {"default_system": chat.default_system, "reasoning_history": chat.reasoning_history}
    settings |= {f"tags_{name}": value for name, value in asdict(Tags.of(chat)).items()}
    line = "".join(f"{{%- set {name} = {_literal(value)} %}}" for name, value in settings.items())
    return line + "\n" + files("posttrain.conversation").joinpath("chatml.jinja").read_text(encoding="utf-8")
