"""Rows to answer, and the token ids of their prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.config.sections.datasets import OnBadRecord
from posttrain.conversation.encoder import ConversationEncoder
from posttrain.conversation.messages import Conversation
from posttrain.data.bad_records import SHOWN_FAULTS
from posttrain.errors import DataError
from posttrain.inference.engine import GenerationRequest, derive_seed

_NO_PROMPT = "there is no prompt before the answer"


@dataclass(frozen=True)
class Row:
    """One prompt, and its reference answer if the data hold one.

    Attributes:
        file: name of the file, or of the task, that it comes from.
        place: where it is, for messages.
        index: its position among the usable rows of `file`, from 0; one line may hold several rows.
        reference: the answer as a model would write it; None if the data hold none.
        facts: further keys of the lines of its answers.
    """

    file: str
    place: str
    line: int
    index: int
    prompt: Conversation
    reference: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Room:
    """Length limits, in tokens.

    Attributes:
        max_length: of a training conversation, and so of a prompt.
        max_new_tokens: of an answer.
        positions: of the model's context, prompt and answer together; None if the model names no limit.
    """

    max_length: int
    max_new_tokens: int
    positions: int | None


@dataclass(frozen=True)
class Prompts:
    """The rows that can be answered, the token ids of each, and one line for each row that cannot."""

    rows: list[Row]
    ids: list[list[int]]
    faults: list[str]

    def requests(self, n: int, seed: int) -> list[GenerationRequest]:
        """One request for each row; its seeds depend on the row's position, not on its prompt."""
        files = {file: number for number, file in enumerate(dict.fromkeys(row.file for row in self.rows))}
        return [
            GenerationRequest(
                tuple(prompt), tuple(derive_seed(seed, files[row.file], row.index, sample) for sample in range(n))
            )
            for row, prompt in zip(self.rows, self.ids, strict=True)
        ]


def encode_prompts(
    rows: Sequence[Row], encoder: ConversationEncoder, room: Room, on_bad_record: OnBadRecord
) -> Prompts:
    """Encode the prompt of each row.

    Raises:
        DataError: a row cannot be answered and `on_bad_record` is error, or no row can be answered.
    """
    prompts = Prompts([], [], [])
    encoded = iter(_encode([row for row in rows if row.prompt.messages], encoder))
    for row in rows:
        ids = next(encoded) if row.prompt.messages else _NO_PROMPT
        fault = ids if isinstance(ids, str) else too_long(len(ids), room)
        if fault:
            prompts.faults.append(f"{row.place}: {fault}")
        elif not isinstance(ids, str):
            prompts.rows.append(row)
            prompts.ids.append(ids)
    _require_usable(prompts.faults, len(prompts.rows), on_bad_record)
    return prompts


def rows_with_prompts(rows: Sequence[Row], on_bad_record: OnBadRecord) -> tuple[list[Row], list[str]]:
    """The rows that have a prompt, which is sent as it is, and a line for each that has none.

    Raises:
        DataError: as `encode_prompts`.
    """
    usable = [row for row in rows if row.prompt.messages]
    faults = [f"{row.place}: {_NO_PROMPT}" for row in rows if not row.prompt.messages]
    _require_usable(faults, len(usable), on_bad_record)
    return usable, faults


def first_faults(faults: Sequence[str]) -> list[str]:
    """The first faults, as many as are shown, and how many more there are."""
    more = len(faults) - SHOWN_FAULTS
    return [*faults[:SHOWN_FAULTS], *([f"... and {more} more"] if more > 0 else [])]


def _encode(rows: Sequence[Row], encoder: ConversationEncoder) -> Sequence[list[int] | str]:
    """Token ids of each prompt, or why it has none; all at once, or one by one to find the row at fault."""
    try:
        return encoder.prompts([row.prompt for row in rows])
    except DataError as error:
        return [str(error)] if len(rows) == 1 else [ids for row in rows for ids in _encode([row], encoder)]


def too_long(length: int, room: Room) -> str | None:
    """Why a prompt of this length cannot be answered; None if it can."""
    if length > room.max_length:
        return f"the prompt has {length} tokens, more than chat.max_length: {room.max_length}"
    if room.positions is not None and length + room.max_new_tokens > room.positions:
        return (
            f"the prompt has {length} tokens; with max_new_tokens: {room.max_new_tokens} that exceeds the "
            f"model's {room.positions} positions"
        )
    return None


def _require_usable(faults: Sequence[str], usable: int, on_bad_record: OnBadRecord) -> None:
    if not faults or (on_bad_record != "error" and usable):
        return
    head = f"{len(faults)} rows cannot be answered:" if len(faults) > 1 else "a row cannot be answered:"
    advice = "correct them, or skip them with on_bad_record: skip" if usable else "no rows are left"
    raise DataError("\n".join([head, *(f"  {line}" for line in first_faults(faults)), advice]))
