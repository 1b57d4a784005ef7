"""From a row of a data set to the messages that the model answers, and the gold answer to compare with."""

from collections.abc import Mapping
from typing import Any

from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.data.records import Columns, parse_record
from posttrain.dataserver.config.datasets import PromptColumnsConfig
from posttrain.dataserver.config.grading import GoldConfig
from posttrain.dataserver.data.columns import column_value
from posttrain.dataserver.graders.text.extraction import extract
from posttrain.dataserver.schemas import WireMessage
from posttrain.errors import DataError


def prompt_columns(columns: PromptColumnsConfig) -> Columns:
    """The columns as the record reader takes them."""
    return Columns(**columns.model_dump(), completion=None, weight=None)


def parse_prompt(record: Mapping[str, Any], columns: Columns, system: str | None) -> Conversation:
    """The conversation up to the turn that is wanted, with a system message if one is to be had.

    Raises:
        DataError: the row has no prompt, or nothing in it waits for an answer.
    """
    conversation, _ = parse_record(record, columns, require_answer=False)
    messages = list(conversation.messages)
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not messages or messages[-1].role == "system":
        raise DataError("the prompt has no user message")
    if system is not None and messages[0].role != "system":
        messages.insert(0, Message("system", system))
    return Conversation(tuple(messages), conversation.tools)


def gold_answer(record: Mapping[str, Any], gold: GoldConfig | None) -> Any:
    """The right answer of a row; None without a `gold` section.

    Raises:
        DataError: the column is not there or null, or the text holds nothing where `gold.extract` looks.
    """
    if gold is None:
        return None
    value = column_value(record, gold.column)
    if value is None:
        raise DataError(
            f"there is no gold answer: {gold.column!r} is missing or null; name the column in gold.column, or write "
            "gold: null where no grader needs one"
        )
    if not isinstance(value, str):
        return value
    found = extract(value, gold.extract)
    if not found:
        raise DataError(f"there is no gold answer: {gold.column!r} holds nothing where gold.extract looks")
    return found


def wire_messages(conversation: Conversation) -> list[WireMessage]:
    """The messages as they are sent."""
    return [
        WireMessage(
            role=message.role,
            content=message.content,
            name=message.name,
            reasoning_content=message.reasoning,
            tool_calls=[_wire_call(call) for call in message.tool_calls] or None,
        )
        for message in conversation.messages
    ]


def last_user_text(conversation: Conversation) -> str:
    """What the user asked last."""
    return next((message.content for message in reversed(conversation.messages) if message.role == "user"), "")


def _wire_call(call: ToolCall) -> dict[str, object]:
    return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
