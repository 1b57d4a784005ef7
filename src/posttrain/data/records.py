"""Parse a row of a data set, by its columns, into a conversation and a weight.

A row has either `messages`, or a `prompt` with its `completion`, each of which is text or a list of messages. If both
are present, `messages` wins. Null columns count as absent, and columns not in `Columns` are ignored: data sets carry
ids, sources and scores that do not matter here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from posttrain.base.strict_json import parse_json
from posttrain.conversation.messages import Conversation, Message, parse_conversation
from posttrain.errors import ConfigError, DataError

# A weight outside this range is a mistake, or becomes 0 or infinity as a 32-bit float.
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6

_SHOWN_COLUMNS = 12


class UselessRecordError(DataError):
    """A row is well-formed, but nothing can be learnt from it."""

    kind = "useless"
    """Its name in the ledger."""


class EmptyAnswerError(UselessRecordError):
    """The answer is empty."""

    kind = "empty answer"


class IdenticalAnswersError(UselessRecordError):
    """Both answers of a pair are the same."""

    kind = "identical answers"


USELESS = (EmptyAnswerError.kind, IdenticalAnswersError.kind)
"""Ledger names of records from which nothing can be learnt."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Column names of a data set; None means that there is no such column."""

    messages: str | None = "messages"
    prompt: str | None = "prompt"
    completion: str | None = "completion"
    system: str | None = None
    tools: str | None = "tools"
    weight: str | None = "weight"

    def __post_init__(self) -> None:
        if self.messages is None and self.prompt is None:
            raise ConfigError("columns: name at least one of messages and prompt")
        names = list(self.names().values())
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ConfigError(f"columns: {', '.join(sorted(twice))} cannot mean two things at once")

    def names(self) -> dict[str, str]:
        """The column name of each meaning that has a column."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {meaning: name for meaning, name in given.items() if name is not None}


@dataclass(frozen=True, slots=True)
class Record:
    """A usable row: its index among the usable rows, counted from 0, and its line in the source, counted from 1."""

    index: int
    line: int
    conversation: Conversation
    weight: float


def parse_record(row: Mapping[str, Any], columns: Columns, *, require_answer: bool) -> tuple[Conversation, float]:
    """The conversation in a row and the factor on its loss; DataError names the first fault.

    With `require_answer` there must be something to learn: a trainable assistant turn that is not empty, and no empty
    one at the end. If emptiness is the only fault, the error is an EmptyAnswerError.
    """
    names = columns.names()
    given = {meaning: row[name] for meaning, name in names.items() if row.get(name) is not None}
    tools = _from_json_text(given.get("tools"), columns.tools)
    if "messages" in given:
        messages = _from_json_text(given["messages"], columns.messages)
        conversation = _conversation(messages, names["messages"], tools)
    elif "prompt" in given and ("completion" in given or not require_answer):
        conversation = _prompt_and_completion(given, names, tools, require_answer)
    else:
        raise DataError(missing_columns(row, columns, require_answer))
    if "system" in given:
        conversation = _with_system(conversation, given["system"], names["system"])
    if require_answer:
        _require_answer(conversation.messages)
    return conversation, _weight(given.get("weight", 1.0), columns.weight)


def missing_columns(row: Mapping[str, Any], columns: Columns, require_answer: bool) -> str:
    """Text that says which columns are required and which ones the row has."""
    pair = [columns.prompt, columns.completion] if require_answer else [columns.prompt]
    alternatives = [[columns.messages], pair]
    wanted = " or ".join(" and ".join(repr(name) for name in names) for names in alternatives if None not in names)
    return f"needs columns {wanted}, but has {columns_found(row)}; the `columns` section can rename them"


def columns_found(row: Mapping[str, Any]) -> str:
    """The columns of a row, as shown in errors."""
    found = [f"{str(name)[:60]!r}{' (null)' * (value is None)}" for name, value in row.items()]
    more = f" and {len(found) - _SHOWN_COLUMNS} more" if len(found) > _SHOWN_COLUMNS else ""
    return ", ".join(found[:_SHOWN_COLUMNS]) + more if found else "no columns at all"


def _prompt_and_completion(
    given: Mapping[str, Any], names: Mapping[str, str], tools: object, require_answer: bool
) -> Conversation:
    prompt = _turns(given["prompt"], "user", names["prompt"], tools)
    answer = given.get("completion")
    blank = not (answer.strip() if isinstance(answer, str) else answer)
    if answer is None or (blank and not require_answer):
        return prompt
    completion = _turns(answer, "assistant", names["completion"])
    if completion.messages[0].role == "system":
        raise DataError(f"{names['completion']} begins with a system message; move it to {names['prompt']}")
    # Answers in the prompt are context and are not trained.
    context = [replace(turn, train=False) if turn.role == "assistant" else turn for turn in prompt.messages]
    return Conversation((*context, *completion.messages), prompt.tools)


def _turns(value: object, role: str, column: str, tools: object = None) -> Conversation:
    """The messages of a column, or one message of `role` if it holds plain text."""
    if not isinstance(value, str | list):
        raise DataError(f"{column} must be text or a list of messages, not {type(value).__name__}")
    blank = not (value.strip() if isinstance(value, str) else value)
    if blank and role == "assistant":
        raise EmptyAnswerError(f"{column} is empty")
    if isinstance(value, list):
        return _conversation(value, column, tools)
    if blank and role != "system":
        raise DataError(f"{column} is empty")
    return _conversation([{"role": role, "content": value}], column, tools)


def _conversation(messages: object, column: str, tools: object = None) -> Conversation:
    try:
        return parse_conversation(messages, tools)
    except DataError as error:
        # Report the fault under the user's name for the column.
        raise DataError(re.sub(r"^messages\b", lambda _: column, str(error))) from None


def _with_system(conversation: Conversation, text: object, column: str) -> Conversation:
    if not isinstance(text, str):
        raise DataError(f"{column} must be text, not {type(text).__name__}")
    if conversation.messages[0].role == "system":
        raise DataError(f"there are two system messages: one in {column}, one in the conversation")
    system = _turns(text, "system", column)
    return Conversation((*system.messages, *conversation.messages), conversation.tools)


def _require_answer(messages: tuple[Message, ...]) -> None:
    answers = [message for message in messages if message.role == "assistant"]
    trainable = [message for message in answers if message.train]
    if not answers:
        raise DataError("there is no assistant message to learn from")
    if not trainable:
        raise DataError("no assistant message may be trained: all have train: false")
    if all(_is_empty(message) for message in trainable):
        raise EmptyAnswerError("the answer is empty")
    if messages[-1] is trainable[-1] and _is_empty(messages[-1]):
        raise EmptyAnswerError("the last answer is empty")


def _is_empty(message: Message) -> bool:
    return not (message.content.strip() or message.tool_calls or (message.reasoning or "").strip())


def _weight(value: object, column: str | None) -> float:
    try:
        # Accept text, since CSV has nothing else, but not a bool, which Python counts as a number.
        weight = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        hint = "; leave the row out instead" if weight == 0 else ""
        raise DataError(
            f"{column} must be a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, not {str(value)[:60]!r}{hint}"
        )
    return weight


def _from_json_text(value: object, column: str | None) -> object:
    """Parse text as the JSON of a list, since tables store lists as JSON text; return other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value.encode())
    except (DataError, UnicodeEncodeError) as error:
        raise DataError(f"{column} is text, but not the JSON text of a list: {error}") from None
