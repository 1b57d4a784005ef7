"""Encode conversations as token ids and loss masks, by the template that the config names."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from posttrain.base.text import clipped
from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import IM_END, IM_START, render, render_prompt, with_default_system
from posttrain.conversation.hf_encoder import HfTextEncoder
from posttrain.conversation.masks import TokenRow, encode_rows
from posttrain.conversation.messages import Conversation
from posttrain.conversation.templates import Apply, Markers, template_messages, template_row, template_turns
from posttrain.errors import DataError, ModelError

log = logging.getLogger(__name__)

# A template is a program: it may divide by nothing, call itself, or ask for more than the sandbox or the machine has.
TEMPLATE_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class ConversationEncoder(Protocol):
    """Turns conversations into rows for training and into prompts for generation."""

    end_ids: frozenset[int]
    """The ids that end an assistant turn: trained in an answer, and where generation stops."""

    start_ids: frozenset[int]
    """The ids that begin a turn of anyone, which no answer has: where one is generated, the answer is over too."""

    def rows(self, conversations: Sequence[Conversation]) -> list[TokenRow]:
        """Whole conversations with their loss masks."""
        ...

    def prompts(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Conversations up to the point where the assistant's next turn starts."""
        ...


def conversation_encoder(chat: ChatConfig, tokenizer: Any, training_template: str | None = None) -> ConversationEncoder:
    """The encoder for `chat.template`.

    `training_template` is the tokenizer's own template with generation markers, where there is one; only masks need it.

    Raises:
        ModelError: the template is the tokenizer's own and it has none, or it cannot end a turn.
    """
    if chat.template == "chatml":
        return ChatMLEncoder(chat, tokenizer)
    return TemplateEncoder(chat, tokenizer, training_template)


class ChatMLEncoder:
    """ChatML by segments (see `posttrain.conversation.chatml`)."""

    def __init__(self, chat: ChatConfig, tokenizer: Any) -> None:
        self._chat = chat
        self._encoder = HfTextEncoder(tokenizer)
        self.end_ids = frozenset({self._encoder.control_id(IM_END)})
        self.start_ids = frozenset({self._encoder.control_id(IM_START)})

    def rows(self, conversations: Sequence[Conversation]) -> list[TokenRow]:
        """Whole conversations with their loss masks."""
        rendered = [
            render(
                conversation,
                default_system=self._chat.default_system,
                train_on=self._chat.train_on,
                reasoning_history=self._chat.reasoning_history,
            )
            for conversation in conversations
        ]
        return encode_rows(rendered, self._encoder)

    def prompts(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Conversations followed by the start of the assistant's turn."""
        rendered = [
            render_prompt(
                conversation,
                default_system=self._chat.default_system,
                reasoning_history=self._chat.reasoning_history,
            )
            for conversation in conversations
        ]
        return [row.ids for row in encode_rows(rendered, self._encoder)]


class TemplateEncoder:
    """The tokenizer's own chat template; masks come from markers where they are, else from rendering prefixes."""

    def __init__(self, chat: ChatConfig, tokenizer: Any, training_template: str | None = None) -> None:
        if not tokenizer.chat_template:
            raise ModelError("chat.template: this tokenizer has no chat template; set chat.template: chatml")
        self._chat = chat
        self._tokenizer = tokenizer
        self._training_template = training_template
        self._told = False
        control = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        turns = template_turns(self._apply(), control.__contains__)
        self.end_ids = turns.ends | ({tokenizer.eos_token_id} - {None})
        self.start_ids = turns.starts - self.end_ids
        if not self.end_ids:
            raise ModelError(
                "chat.template: neither this tokenizer nor its chat template names an end token; set chat.template: "
                "chatml"
            )

    def rows(self, conversations: Sequence[Conversation]) -> list[TokenRow]:
        """Whole conversations with their loss masks; DataError where the template cannot be masked."""
        return [
            template_row(
                conversation,
                self._apply(conversation.tools),
                end_ids=self.end_ids,
                default_system=self._chat.default_system,
                train_on=self._chat.train_on,
                markers=self._markers(conversation.tools),
            )
            for conversation in conversations
        ]

    def prompts(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Conversations with the template's generation prompt."""
        return [
            self._apply(conversation.tools)(
                template_messages(with_default_system(conversation, self._chat.default_system)), True
            )
            for conversation in conversations
        ]

    def _apply(self, tools: tuple[dict, ...] = ()) -> Apply:
        from jinja2 import TemplateError  # comes with the tokenizer's library, and not with the base install

        def apply(messages: list[dict[str, Any]], add_generation_prompt: bool) -> list[int]:
            try:
                return self._tokenizer.apply_chat_template(
                    messages,
                    tools=list(tools) or None,
                    add_generation_prompt=add_generation_prompt,
                    tokenize=True,
                    return_dict=False,
                )
            except TemplateError as error:  # many templates refuse, say, two user turns in a row
                told = clipped(str(error))
                raise DataError(f"the tokenizer's chat template refuses the conversation: {told}") from error
            except TEMPLATE_FAULTS as error:
                told = f"{type(error).__name__}: {clipped(str(error))}"
                raise DataError(f"the tokenizer's chat template cannot write the conversation: {told}") from error

        return apply

    def _markers(self, tools: tuple[dict, ...]) -> Markers | None:
        if self._training_template is None:
            return None
        from jinja2 import TemplateError

        def marked(messages: list[dict[str, Any]], ids: list[int]) -> Sequence[int]:
            try:
                written = self._tokenizer.apply_chat_template(
                    messages,
                    tools=list(tools) or None,
                    chat_template=self._training_template,
                    tokenize=True,
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                )
                if written["input_ids"] == ids:
                    return written["assistant_masks"]
            except (TemplateError, *TEMPLATE_FAULTS) as error:
                log.debug("the training template cannot write a conversation: %s", error)
            self._tell_of_other_text()
            return ()

        return Markers(marked, lambda ids: self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def _tell_of_other_text(self) -> None:
        if not self._told:
            log.warning(
                "the training template for this tokenizer's chat template writes a conversation otherwise; what is "
                "trained there is found by rendering prefixes"
            )
        self._told = True
