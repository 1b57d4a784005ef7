"""Encode conversations as token ids and loss masks, with the template that the config names."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from posttrain.base.text import clipped
from posttrain.config.jinja_source import variables_of
from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import IM_END, IM_START, Tags, render, render_prompt, with_default_system
from posttrain.conversation.masks import TokenRow, encode_rows
from posttrain.conversation.messages import Conversation
from posttrain.conversation.templates import Apply, Marked, template_messages, template_row, template_turns
from posttrain.errors import ConfigError, DataError, ModelError

REPLACEMENT = "\ufffd"
"""Unicode's replacement character."""


class HfTextEncoder:
    """Encodes text with every special token split into ordinary tokens, and adds none.

    A character that the vocabulary cannot spell is replaced by U+FFFD and reported once. Otherwise it would become the
    unknown token, which may be a control token: SmolLM2's is `<|endoftext|>`, and its vocabulary lacks a few bytes, so
    that a stray U+0016 in a text would end it.

    Tokens added to a vocabulary as ordinary ones (`<think>` in some) are not split. `control_id` therefore refuses a
    control token that is registered as one of them: anyone could type it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._control_ids: dict[str, int] = {}
        self._reported: set[str] = set()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; leaves the tokenizer's settings unchanged."""
        unknown = self._tokenizer.unk_token_id
        encoded = self._encode(list(texts))
        if unknown is None:
            return encoded
        return [
            self._encode([self._spellable(text, unknown)])[0] if unknown in ids else ids
            for text, ids in zip(texts, encoded, strict=True)
        ]

    def control_id(self, token: str) -> int:
        """Id of a control token; ModelError if the vocabulary lacks it, or if ordinary text can produce it."""
        if token not in self._control_ids:
            self._control_ids[token] = self._checked(token)
        return self._control_ids[token]

    def _checked(self, token: str) -> int:
        id_ = self._tokenizer.convert_tokens_to_ids(token)
        if id_ is None or (id_ == self._tokenizer.unk_token_id and token != self._tokenizer.unk_token):
            raise ModelError(f"the tokenizer has no token {token!r}; add it as a special token")
        if id_ in self._encode([token])[0]:
            raise ModelError(
                f"the tokenizer encodes ordinary text as the control token {token!r}; register it as a special token, "
                "so that the two can be distinguished"
            )
        return id_

    def _spellable(self, text: str, unknown: int) -> str:
        letters = sorted(set(text))
        missing = {a for a, ids in zip(letters, self._encode(letters), strict=True) if unknown in ids}
        for letter in sorted(missing - self._reported):
            log.warning("the tokenizer cannot encode U+%04X; it is replaced by U+FFFD", ord(letter))
        self._reported |= missing
        return text.translate({ord(letter): REPLACEMENT for letter in missing})

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        # Conversations are truncated by the config's policy, never here; `verbose` would warn about long texts.
        options = {"padding": False, "truncation": False, "return_attention_mask": False, "verbose": False}
        encoding = self._tokenizer(texts, add_special_tokens=False, split_special_tokens=True, **options)
        return encoding["input_ids"]


log = logging.getLogger(__name__)

# A template is a program: it may divide by zero, recurse, or exceed the limits of the sandbox or the machine.
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
    """Ids that end an assistant turn: they are trained, and generation stops at them."""

    start_ids: frozenset[int]
    """Ids that begin a turn of any role. No answer contains one, so a generated one ends the answer too."""

    def rows(self, conversations: Sequence[Conversation]) -> list[TokenRow]:
        """Whole conversations with their loss masks."""
        ...

    def prompts(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Conversations up to the start of the next assistant turn."""
        ...


def conversation_encoder(chat: ChatConfig, tokenizer: Any, training_template: str | None = None) -> ConversationEncoder:
    """The encoder for `chat.template`.

    `training_template` is the tokenizer's own template with generation markers, if there is one; only masks need it.

    Raises:
        ModelError: for `chatml`, the tokenizer lacks a control token or makes it out of ordinary text; for `tokenizer`,
            it has no chat template; for any template but `chatml`, there is no token that ends a turn.
        ConfigError: the template has no variable of that name.
    """
    if chat.template == "chatml":
        return ChatMLEncoder(chat, tokenizer)
    return TemplateEncoder(chat, tokenizer, training_template)


class ChatMLEncoder:
    """ChatML by segments (see `posttrain.conversation.chatml`)."""

    def __init__(self, chat: ChatConfig, tokenizer: Any) -> None:
        self._chat, self._tags = chat, Tags.of(chat)
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
                tags=self._tags,
            )
            for conversation in conversations
        ]
        return encode_rows(rendered, self._encoder)

    def prompts(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Conversations followed by the start of the next assistant turn."""
        rendered = [
            render_prompt(
                conversation,
                default_system=self._chat.default_system,
                reasoning_history=self._chat.reasoning_history,
                tags=self._tags,
            )
            for conversation in conversations
        ]
        return [row.ids for row in encode_rows(rendered, self._encoder)]


class TemplateEncoder:
    """The tokenizer's chat template or one's own; masks come from markers if there are any, else from prefixes."""

    def __init__(self, chat: ChatConfig, tokenizer: Any, training_template: str | None = None) -> None:
        if not (chat.own_template or tokenizer.chat_template):
            raise ModelError("chat.template: this tokenizer has no chat template; set chat.template: chatml")
        self._options = {**_variables(chat, tokenizer), "chat_template": chat.own_template}
        self._chat = chat
        self._tokenizer = tokenizer
        self._training_template = training_template
        self._warned = False
        control = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        turns = template_turns(self._apply(), control.__contains__)
        self.end_ids = turns.ends | ({tokenizer.eos_token_id} - {None})
        self.start_ids = turns.starts - self.end_ids
        if not self.end_ids:
            raise ModelError(
                "chat.template: neither this tokenizer nor the chat template defines an end token; set chat.template: "
                "chatml"
            )

    def rows(self, conversations: Sequence[Conversation]) -> list[TokenRow]:
        """Whole conversations with their loss masks; DataError if the template cannot be masked."""
        return [
            template_row(
                conversation,
                self._apply(conversation.tools),
                end_ids=self.end_ids,
                default_system=self._chat.default_system,
                train_on=self._chat.train_on,
                marked=self._marked(conversation.tools),
                spelled=self._spelled,
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
        from jinja2 import TemplateError  # comes with the tokenizer's library, not with the base install

        def apply(messages: list[dict[str, Any]], add_generation_prompt: bool) -> list[int]:
            try:
                return self._tokenizer.apply_chat_template(
                    messages,
                    tools=list(tools) or None,
                    add_generation_prompt=add_generation_prompt,
                    tokenize=True,
                    return_dict=False,
                    **self._options,
                )
            except TemplateError as error:  # many templates refuse, say, two user turns in a row
                told = clipped(str(error))
                raise DataError(f"the chat template rejects the conversation: {told}") from error
            except TEMPLATE_FAULTS as error:
                told = f"{type(error).__name__}: {clipped(str(error))}"
                raise DataError(f"the chat template cannot render the conversation: {told}") from error

        return apply

    def _marked(self, tools: tuple[dict, ...]) -> Marked | None:
        if self._training_template is None:
            return None
        from jinja2 import TemplateError

        def marked(messages: list[dict[str, Any]], ids: list[int]) -> Sequence[int]:
            try:
                written = self._tokenizer.apply_chat_template(
                    messages,
                    tools=list(tools) or None,
                    tokenize=True,
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                    **{**self._options, "chat_template": self._training_template},
                )
                if written["input_ids"] == ids:
                    return written["assistant_masks"]
            except (TemplateError, *TEMPLATE_FAULTS) as error:
                log.debug("the training template cannot render a conversation: %s", error)
            self._tell_of_other_text()
            return ()

        return marked

    def _spelled(self, text: str | Sequence[int]) -> str:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"] if isinstance(text, str) else text
        written = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return "".join(written.split())

    def _tell_of_other_text(self) -> None:
        if not self._warned:
            log.warning(
                "the training template for this chat template renders a conversation differently; its "
                "loss mask is computed from rendered prefixes instead"
            )
        self._warned = True


def _variables(chat: ChatConfig, tokenizer: Any) -> dict[str, Any]:
    """The config's variables for the template; ConfigError if it does not mention one of them."""
    given, template = chat.template_variables or {}, chat.own_template or tokenizer.chat_template
    texts = template.values() if isinstance(template, dict) else [template]
    known = sorted({name for text in texts for name in variables_of(text)}) if given else []
    for name in given:
        if name not in known:
            raise ConfigError(
                f"chat.template_variables: the chat template has no variable {name}; "
                f"it has {', '.join(known) or 'none'}"
            )
    return given
