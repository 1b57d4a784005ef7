"""Parse a record of preference data: a prompt with a chosen and a rejected answer, or one labelled answer.

Both answers are kept as whole conversations in the form that SFT renders, so that the text is the same as SFT's. The
messages' `train` flags mark the answer: messages before it are not trained, whatever the data say.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from posttrain.base.strict_json import parse_json
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.conversation.messages import Conversation, Message
from posttrain.data.bad_records import require_columns
from posttrain.data.readers.json_lines import Line
from posttrain.data.readers.open import LineSource
from posttrain.data.records import Columns, EmptyAnswerError, IdenticalAnswersError, columns_found, parse_record
from posttrain.data.sources import (
    Attempt,
    Examples,
    Source,
    format_suggested,
    open_rows,
    open_source,
    require_usable_start,
    values,
)
from posttrain.dpo.config.data import (
    AnyPreferences,
    LabelledColumnsConfig,
    PairColumnsConfig,
    TwoFilesDataset,
)
from posttrain.errors import DataError

_SHOWN_CHARACTERS = 60
_LABELS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class Preference:
    """Answers to one prompt, each a whole conversation that begins with it; a labelled answer has only one side."""

    prompt: Conversation
    chosen: Conversation | None
    rejected: Conversation | None
    weight: float

    @property
    def answers(self) -> list[Conversation]:
        """The conversations that are not None, the chosen one first."""
        return [answer for answer in (self.chosen, self.rejected) if answer is not None]


def parse_pair(row: Mapping[str, Any], columns: PairColumnsConfig) -> Preference:
    """Parse the pair in a row of one file.

    Raises:
        EmptyAnswerError, IdenticalAnswersError: the row is well formed, but there is nothing to prefer.
        DataError: the row's first fault otherwise.
    """
    if any(row.get(name) is None for name in (columns.chosen, columns.rejected)):
        raise DataError(_missing(row, columns))
    row = {**row, **{name: _messages(row.get(name)) for name in (columns.prompt, columns.chosen, columns.rejected)}}
    chosen, weight = _side(row, columns, columns.chosen)
    rejected, _ = _side(row, columns, columns.rejected)
    return make_pair(chosen, rejected, weight)


def make_pair(chosen: Conversation, rejected: Conversation, weight: float) -> Preference:
    """Make a pair of two conversations, whose longest common prefix is the prompt.

    Raises:
        EmptyAnswerError: an answer is empty.
        IdenticalAnswersError: both are the same.
        DataError: their tools differ, their first difference is not in an answer, one is a prefix of the other, there
            is no prompt, or no message of an answer may be trained.
    """
    if chosen.tools != rejected.tools:
        raise DataError("the prompts have different tools")
    one, other = _said(chosen.messages), _said(rejected.messages)
    shared = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    if len(one) == len(other) == shared:
        raise IdenticalAnswersError("both answers are the same")
    if shared in (len(one), len(other)):
        which, longer = ("chosen", "rejected") if shared == len(one) else ("rejected", "chosen")
        raise DataError(f"the {which} conversation is a prefix of the {longer} one, so it has no answer of its own")
    if one[shared].role != "assistant" or other[shared].role != "assistant":
        raise DataError(f"the prompts differ at {_difference(shared, one[shared], other[shared])}")
    if shared == 0:
        raise DataError("both conversations begin with an answer: there is no prompt")
    prompt = Conversation(one[:shared], chosen.tools)
    return Preference(prompt, _answered(chosen, shared), _answered(rejected, shared), weight)


def parse_labelled(row: Mapping[str, Any], columns: LabelledColumnsConfig) -> Preference:
    """Parse the labelled answer in a row; in `messages` it is the last turn, which must be the assistant's.

    Raises:
        EmptyAnswerError: the answer is empty.
        DataError: the row's first fault otherwise.
    """
    named = Columns(**columns.model_dump(exclude={"label"}))
    conversation, weight = parse_record(row, named, require_answer=True)
    if row.get(columns.messages) is None:
        prompt, _ = parse_record(row, replace(named, completion=None), require_answer=False)
        answer_at = len(prompt.messages)
    else:
        answer_at = len(conversation.messages) - 1
        if conversation.messages[-1].role != "assistant":
            raise DataError("the conversation does not end with an answer to label")
    if answer_at == 0:
        raise DataError("the conversation begins with its answer: there is no prompt")
    desirable = _label(row, columns.label)
    answered = _answered(conversation, answer_at)
    prompt = Conversation(_said(conversation.messages[:answer_at]), answered.tools)
    return Preference(prompt, answered if desirable else None, None if desirable else answered, weight)


def _side(row: Mapping[str, Any], columns: PairColumnsConfig, column: str) -> tuple[Conversation, float]:
    """The prompt with the answer in `column`, parsed as SFT parses such a row."""
    value = row[column]
    shared = {"system": columns.system, "tools": columns.tools, "weight": columns.weight}
    has_prompt = row.get(columns.prompt) is not None
    if not has_prompt and isinstance(value, str) and not value.lstrip().startswith("["):
        raise DataError(f"{column} is text, but there is no column {columns.prompt!r} for it to answer")
    try:
        if has_prompt and not _is_whole(value):
            names = Columns(messages=None, prompt=columns.prompt, completion=column, **shared)
            return parse_record(row, names, require_answer=True)
        names = Columns(messages=column, prompt=columns.prompt if has_prompt else None, completion=None, **shared)
        conversation, weight = parse_record(row, names, require_answer=True)
    except DataError as error:
        if str(error).startswith((column, columns.prompt)):
            raise
        raise type(error)(f"{column}: {error}") from None
    if has_prompt:
        prompt, _ = parse_record(row, replace(names, messages=None), require_answer=False)
        _require_beginning(prompt, conversation, columns.prompt, column)
    return conversation, weight


def _missing(row: Mapping[str, Any], columns: PairColumnsConfig) -> str:
    """The error message for a row that is not a pair."""
    labelled = LabelledColumnsConfig()
    advice = "the `columns` section can rename them"
    if row.get(labelled.label) is not None:
        advice = "for individually labelled answers, set `type: labelled`, which needs method.type: kto"
    return f"needs columns {columns.chosen!r} and {columns.rejected!r}, but has {columns_found(row)}; {advice}"


def _messages(value: object) -> object:
    """A list of messages if `value` is its JSON text, as tables store it, or a single message; else `value` itself."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            read = parse_json(value.encode())
        except (DataError, UnicodeEncodeError):
            return value
        return _messages(read) if isinstance(read, list | dict) and _are_messages(read) else value
    return [value] if isinstance(value, Mapping) and _are_messages(value) else value


def _are_messages(value: object) -> bool:
    each = value if isinstance(value, list) else [value]
    return bool(each) and all(isinstance(message, Mapping) and "role" in message for message in each)


def _said(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages for comparison, which ignores their `train` flags."""
    return tuple(replace(turn, train=True) for turn in messages)


def _is_whole(value: object) -> bool:
    """Whether messages are a whole conversation rather than the answer alone."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, Mapping) and first.get("role") != "assistant"


def _require_beginning(prompt: Conversation, conversation: Conversation, prompt_column: str, column: str) -> None:
    messages = conversation.messages
    if prompt.messages[0].role != "system" and messages[0].role == "system":
        messages = messages[1:]
    if _said(messages[: len(prompt.messages)]) != _said(prompt.messages):
        raise DataError(
            f"{column} is a complete conversation, but does not begin with {prompt_column}; give only the answer, "
            f"or omit {prompt_column}"
        )


def _answered(conversation: Conversation, answer_at: int) -> Conversation:
    """The conversation with no message before index `answer_at` trained."""
    messages = conversation.messages
    before = [replace(turn, train=False) if turn.role == "assistant" else turn for turn in messages[:answer_at]]
    answer = messages[answer_at:]
    trained = [turn for turn in answer if turn.role == "assistant" and turn.train]
    if not trained:
        raise DataError("no message of an answer may be trained: all have train: false")
    if not any(turn.content.strip() or turn.tool_calls or (turn.reasoning or "").strip() for turn in trained):
        raise EmptyAnswerError("an answer is empty")
    return Conversation((*before, *answer), conversation.tools)


def _label(row: Mapping[str, Any], column: str) -> bool:
    value = row.get(column)
    if value is None:
        raise DataError(f"there is no label: needs column {column!r}, but has {columns_found(row)}")
    # Tables may have no booleans: the label is text, because CSV has nothing else, or a number.
    label = _LABELS.get(str(int(value)) if isinstance(value, float) and value in (0, 1) else str(value).strip().lower())
    if label is None:
        raise DataError(f"{column} must be true or false, or 1 or 0, not {str(value)[:_SHOWN_CHARACTERS]!r}")
    return label


def _difference(index: int, one: Message, other: Message) -> str:
    """Where two prompts differ, with a short excerpt of each around that place."""
    if one.role != other.role:
        return f"messages[{index}]: {one.role} vs. {other.role}"
    pairs = enumerate(zip(one.content, other.content, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), min(len(one.content), len(other.content)))
    shown = [repr(message.content[max(0, at - 10) : at + 30]) for message in (one, other)]
    return f"messages[{index}] ({one.role}), character {at}: {shown[0]} vs. {shown[1]}"


def open_preferences(config: AnyPreferences) -> Examples[Preference]:
    """Find the data that a config names; DataError if it is missing or unreadable."""
    if isinstance(config, TwoFilesDataset):
        accepted, rejected = config.files()
        return _two_files(open_source(accepted), open_source(rejected))
    columns = config.columns
    names = {meaning: name for meaning, name in columns.model_dump().items() if name is not None}
    source = open_rows(config.path, names, config.split, config.format)
    return _one_file(source, columns)


def require_readable(sources: Iterable[AnyPreferences], on_bad_record: OnBadRecord) -> None:
    """Raise DataError if of the first records of a data set none can be used; see `require_usable_start`."""
    require_usable_start(
        [([file.path for file in each.sources().values()], partial(open_preferences, each)) for each in sources],
        on_bad_record,
    )


def _one_file(source: LineSource, columns: PairColumnsConfig | LabelledColumnsConfig) -> Examples[Preference]:
    seen: set[str] = set()

    def parse(line: Line) -> Preference:
        row = values(line)
        seen.update(row)
        with format_suggested(row):
            if isinstance(columns, LabelledColumnsConfig):
                return parse_labelled(row, columns)
            return parse_pair(row, columns)

    def attempts() -> Iterator[Attempt[Preference]]:
        for line in source.lines():
            yield Attempt(source.place(line.number), line.number, partial(parse, line), str(line.number))

    def check() -> None:
        require_columns(source.name, columns.model_dump(), type(columns)().model_dump(), seen)

    return Examples(source.name, source.digest, attempts, check, source.note)


def _two_files(accepted: Source, rejected: Source) -> Examples[Preference]:
    """Pair record n of one file with record n of the other; blank lines do not count in either."""
    name = f"{accepted.name} with {rejected.name}"
    seen: tuple[set[str], set[str]] = set(), set()

    def attempts() -> Iterator[Attempt[Preference]]:
        for one, other in zip_longest(accepted.lines(), rejected.lines()):
            if one is None or other is None:
                raise DataError(_uneven(accepted, rejected))
            place = f"{accepted.place(one.number)} and {rejected.place(other.number)}"
            yield Attempt(place, one.number, partial(parse, one, other), f"{one.number}/{other.number}")

    def parse(one: Line, other: Line) -> Preference:
        chosen, weight = _side_of_file(accepted, one, seen[0], "accepted")
        answer, its_weight = _side_of_file(rejected, other, seen[1], "rejected")
        if its_weight not in (1.0, weight):
            raise DataError(
                f"the accepted row has weight {weight:g} and the rejected one {its_weight:g}; give both the same weight"
            )
        return make_pair(chosen, answer, weight)

    def check() -> None:
        for source, columns in zip((accepted, rejected), seen, strict=True):
            require_columns(source.name, source.columns.names(), Columns().names(), columns)

    notes = [source.note for source in (accepted, rejected) if source.note is not None]
    return Examples(name, f"{accepted.digest}-{rejected.digest}", attempts, check, "\n".join(notes) or None)


def _side_of_file(source: Source, line: Line, seen: set[str], which: str) -> tuple[Conversation, float]:
    try:
        row = values(line)
        seen.update(row)
        return parse_record(row, source.columns, require_answer=True)
    except DataError as error:
        raise type(error)(f"{which}: {error}") from None


def _uneven(accepted: LineSource, rejected: LineSource) -> str:
    one, other = (sum(1 for _ in source.lines()) for source in (accepted, rejected))
    return (
        f"{accepted.name} has {one} records and {rejected.name} has {other}; record n of one is paired with record n "
        "of the other, so both need the same number of records"
    )
