"""What a row of any training file says: its prompt and its answers as texts, to be compared and counted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.conversation.messages import Conversation, Message, parse_conversation
from posttrain.data.records import Columns, columns_found, parse_record
from posttrain.errors import DataError

_COLUMNS = Columns()
_SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class RowTexts:
    """The texts of a row.

    Attributes:
        prompt: what is said before the answer, without the system message.
        answers: by name: `answer`, or `chosen` and `rejected`; none if the row is only a prompt.
        turns: number of messages, the answer's included; of a pair, of its chosen side.
        asked: the user's turns that an answer follows, and the last turn if it is the user's.
    """

    prompt: str
    answers: Mapping[str, str]
    turns: int
    asked: Sequence[str] = ()

    @property
    def whole(self) -> str:
        """Prompt and answers as one text."""
        return "\n".join([self.prompt, *self.answers.values()])


def prompt_text(conversation: Conversation) -> str:
    """What a prompt says, without its system message, which prompts on anything share."""
    return _said([message for message in conversation.messages if message.role != "system"])


def read_texts(row: Mapping[str, Any], column: str | None = None) -> RowTexts:
    """The texts of a conversation, a prompt with or without its completion, or a pair.

    Args:
        column: take the text in this column for the prompt, and nothing else.

    Raises:
        DataError: the row is none of these.
    """
    if column is not None:
        text = row.get(column)
        if not isinstance(text, str):
            kind = "which is missing" if text is None else f"not {type(text).__name__}"
            raise DataError(f"needs a text in column {column!r}, {kind}; the row has {columns_found(row)}")
        return RowTexts(text, {}, 1)
    if all(row.get(side) is not None for side in _SIDES):
        return _pair(row)
    messages = parse_record(row, _COLUMNS, require_answer=False)[0].messages
    end = len(messages)
    while end and messages[end - 1].role == "assistant":
        end -= 1
    answers = {"answer": _said(messages[end:])} if end < len(messages) else {}
    return RowTexts(prompt_text(Conversation(messages[:end])), answers, len(messages), _asked(messages))


def _pair(row: Mapping[str, Any]) -> RowTexts:
    chosen, rejected = (_side(row, side) for side in _SIDES)
    prompt: Sequence[Message] = ()
    if row.get("prompt") is not None:
        names = Columns(messages=None, completion=None, tools=None)
        prompt = parse_record(row, names, require_answer=False)[0].messages
    elif chosen[0].role != "assistant":
        both = zip(chosen, rejected, strict=False)
        shared = next((at for at, (one, other) in enumerate(both) if one != other), min(len(chosen), len(rejected)))
        prompt = chosen[:shared]
    if not prompt:
        raise DataError("the pair has no prompt: needs a column 'prompt', or whole conversations on both sides")
    sides = {}
    for name, side in zip(_SIDES, (chosen, rejected), strict=True):
        begins_with_prompt = list(side[: len(prompt)]) == list(prompt)
        sides[name] = side[len(prompt) :] if begins_with_prompt else side
    texts = {name: _said(side) for name, side in sides.items()}
    turns = len(prompt) + len(sides["chosen"])
    return RowTexts(prompt_text(Conversation(tuple(prompt))), texts, turns, _asked([*prompt, *sides["chosen"]]))


def _asked(messages: Sequence[Message]) -> list[str]:
    turns = zip(messages, [*messages[1:], None], strict=True)
    return [one.content for one, after in turns if one.role == "user" and (after is None or after.role == "assistant")]


def _side(row: Mapping[str, Any], name: str) -> Sequence[Message]:
    value = row[name]
    if isinstance(value, str):
        return [Message("assistant", value)]
    try:
        return parse_conversation([value] if isinstance(value, Mapping) else value).messages
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _said(messages: Sequence[Message]) -> str:
    """The texts of messages, with the reasoning and the tool calls in them."""
    texts = []
    for message in messages:
        calls = [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in message.tool_calls]
        texts += [text for text in (message.reasoning, message.content, *calls) if text]
    return "\n".join(texts)
