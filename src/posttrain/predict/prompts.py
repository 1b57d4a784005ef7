"""From rows to the ids that a model is asked to continue, with every row that it cannot be asked told by its place."""

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.config.sections.datasets import OnBadRecord
from posttrain.conversation.encoder import ConversationEncoder
from posttrain.data.sources import SHOWN_FAULTS
from posttrain.errors import DataError
from posttrain.predict.inputs import Row


@dataclass(frozen=True)
class Room:
    """What there is room for, in tokens.

    Attributes:
        max_length: the longest conversation of the training, and so the longest prompt.
        max_new_tokens: the longest answer.
        positions: the most that the model can hold, prompt and answer together; None where it names no limit.
    """

    max_length: int
    max_new_tokens: int
    positions: int | None


@dataclass(frozen=True)
class Prompts:
    """The rows that can be asked, the ids of each, and a line for each of the others."""

    rows: list[Row]
    ids: list[list[int]]
    faults: list[str]


def encode_prompts(
    rows: Sequence[Row], encoder: ConversationEncoder, room: Room, on_bad_record: OnBadRecord
) -> Prompts:
    """Encode what is asked in each row.

    Raises:
        DataError: there are rows that cannot be asked and `on_bad_record` is error, or there are no others.
    """
    prompts = Prompts([], [], [])
    encoded = iter(_encode([row for row in rows if row.prompt.messages], encoder))
    for row in rows:
        ids = next(encoded) if row.prompt.messages else "there is nothing before the answer that could be asked"
        fault = ids if isinstance(ids, str) else _too_long(len(ids), room)
        if fault:
            prompts.faults.append(f"{row.place}: {fault}")
        elif not isinstance(ids, str):
            prompts.rows.append(row)
            prompts.ids.append(ids)
    if prompts.faults and (on_bad_record == "error" or not prompts.rows):
        raise DataError(_refusal(prompts))
    return prompts


def first_faults(faults: Sequence[str]) -> list[str]:
    """As many as a person wants to see, and how many more there are."""
    more = len(faults) - SHOWN_FAULTS
    return [*faults[:SHOWN_FAULTS], *([f"... and {more} more"] if more > 0 else [])]


def _encode(rows: Sequence[Row], encoder: ConversationEncoder) -> Sequence[list[int] | str]:
    """Ids of each prompt, or why it has none. All at once is fast; one by one tells which row is at fault."""
    try:
        return encoder.prompts([row.prompt for row in rows])
    except DataError:
        return [_encode_one(row, encoder) for row in rows]


def _encode_one(row: Row, encoder: ConversationEncoder) -> list[int] | str:
    try:
        return encoder.prompts([row.prompt])[0]
    except DataError as error:
        return str(error)


def _too_long(length: int, room: Room) -> str | None:
    if length > room.max_length:
        return f"the prompt has {length} tokens, more than chat.max_length: {room.max_length}"
    if room.positions is not None and length + room.max_new_tokens > room.positions:
        return (
            f"the prompt has {length} tokens; with generation.max_new_tokens: {room.max_new_tokens} that is more "
            f"than the {room.positions} that the model can hold"
        )
    return None


def _refusal(prompts: Prompts) -> str:
    count = len(prompts.faults)
    head = f"{count} rows cannot be answered:" if count > 1 else "a row cannot be answered:"
    advice = "correct them, or leave them out by on_bad_record: skip" if prompts.rows else "no other row is left"
    return "\n".join([head, *(f"  {line}" for line in first_faults(prompts.faults)), advice])
