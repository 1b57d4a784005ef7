"""Check by llama.cpp itself that a GGUF file cuts texts, renders conversations and ends answers as its model does."""

from collections.abc import Callable
from typing import Any

from posttrain.base.text import clipped
from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import Tags, render_prompt, text, with_default_system
from posttrain.conversation.encoder import ConversationEncoder, HfTextEncoder
from posttrain.conversation.messages import Conversation
from posttrain.conversation.templates import template_messages
from posttrain.errors import RunError
from posttrain.export.probes import CONVERSATIONS, PROMPTS, TEXTS
from posttrain.export.server import LlamaServer


def check_text(server: LlamaServer, tokenizer: Any, encoder: ConversationEncoder, chat: ChatConfig) -> dict[str, Any]:
    """Check ids, template and end tokens; returns what was counted.

    Raises:
        RunError: naming the text, the conversation or the token.
    """
    render = _renderer(tokenizer, chat)
    check_ids(server, tokenizer)
    check_prompts(server, encoder, render)
    rendered = check_rendering(server, render)
    check_ends(server, tokenizer, encoder)
    return {"texts": len(TEXTS), "prompts": len(PROMPTS), "conversations": rendered, "end_ids": sorted(encoder.end_ids)}


def check_ids(server: LlamaServer, tokenizer: Any) -> None:
    """Texts must have the model's ids, in which nothing is read as a control token."""
    for one, ids in zip(TEXTS, HfTextEncoder(tokenizer).encode(TEXTS), strict=True):
        if (own := server.tokenize(one, control=False)) != ids:
            raise RunError(f"token ids: {clipped(repr(one))} has {_first(own, ids)}")


def check_prompts(server: LlamaServer, encoder: ConversationEncoder, render: Callable[[Conversation], str]) -> None:
    """Rendered prompts must have the ids of training, control tokens included, with nothing before them."""
    for prompt, ids in zip(PROMPTS, encoder.prompts(PROMPTS), strict=True):
        own = server.tokenize(render(prompt), control=True)
        if own != ids:
            raise RunError(f"token ids: the prompt {clipped(repr(prompt.messages[-1].content))} has {_first(own, ids)}")
        if (added := server.tokenize(render(prompt), control=True, add=True)) != ids:
            raise RunError(f"token ids: llama.cpp adds tokens to a prompt that training did not: {_first(added, ids)}")


def check_rendering(server: LlamaServer, render: Callable[[Conversation], str]) -> int:
    """Conversations must be rendered byte for byte as in training; returns how many the template takes."""
    rendered = 0
    for conversation in CONVERSATIONS:
        try:
            expected = render(conversation)
        except ValueError:  # a model's own template may refuse, e.g., a system message
            continue
        own, rendered = server.render(template_messages(conversation)), rendered + 1
        if own != expected:
            same = next((at for at, pair in enumerate(zip(own, expected, strict=False)) if pair[0] != pair[1]), None)
            at = min(len(own), len(expected)) if same is None else same
            raise RunError(
                f"chat template: llama.cpp renders conversation {rendered} of the check otherwise: "
                f"{own[at : at + 40]!r} where training had {expected[at : at + 40]!r}"
            )
    return rendered


def check_ends(server: LlamaServer, tokenizer: Any, encoder: ConversationEncoder) -> None:
    """A token that ends a turn must end the answer at once."""
    (prompt,) = encoder.prompts(PROMPTS[:1])
    for token in sorted(encoder.end_ids):
        answer = server.answer(prompt, 2, forced=token)
        if not answer.has_ended or answer.ids != [token]:
            raise RunError(
                f"end token: llama.cpp goes on after {tokenizer.convert_ids_to_tokens(token)!r} ({token}), which ends "
                "a turn"
            )


def _renderer(tokenizer: Any, chat: ChatConfig) -> Callable[[Conversation], str]:
    """The text of a prompt as it was trained."""
    if chat.template == "chatml":
        options: dict[str, Any] = {
            "default_system": chat.default_system,
            "reasoning_history": chat.reasoning_history,
            "tags": Tags.of(chat),
        }
        return lambda conversation: text(render_prompt(conversation, **options))

    from jinja2 import TemplateError

    def render(conversation: Conversation) -> str:
        messages = template_messages(with_default_system(conversation, chat.default_system))
        try:
            return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise ValueError(str(error)) from error

    return render


def _first(own: list[int], ids: list[int]) -> str:
    at = next((at for at, pair in enumerate(zip(own, ids, strict=False)) if pair[0] != pair[1]), len(ids))
    return f"in llama.cpp the ids {own[at : at + 4]} where the model has {ids[at : at + 4]}, from token {at + 1} on"
