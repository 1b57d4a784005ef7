"""What the journal keeps of one graded completion."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from posttrain.dataserver.schemas import Component, Split, Status


# Not frozen: that would make one three times as slow to build, which counts at ten thousand a second.
@dataclass(slots=True, kw_only=True)
class JournalRow:
    """One graded completion, as the service hands it over. The same four ids name the same row."""

    config_id: str
    run_id: str
    """Empty where the trainer names no run."""
    request_id: str
    item_id: str
    created_at: datetime
    """When it was graded, in UTC; a time without a zone is taken for UTC."""
    split: Split
    iteration: int
    stage: str
    dataset: str
    sample_id: str
    row_key: str
    """Names the row of the data set, whatever its content; statistics for adaptive sampling go by it."""
    slot: int | None
    prompt: str
    """The text of the last user message."""
    gold: object = None
    """The right answer: anything that JSON can hold."""
    completion: str
    completion_digest: str
    """SHA-256 of all that the model wrote (UTF-8), as hex digits."""
    completion_tokens: int | None = None
    truncated: bool | None = None
    """Whether generation stopped at its limit, if the trainer told it."""
    status: Status
    reason: str = ""
    """Why there is no reward."""
    reward: float | None
    """None unless the status is ok."""
    components: Mapping[str, Component] = field(default_factory=dict)
    """By grader."""
    milliseconds: float
    """From the request's arrival to this result."""


@dataclass(slots=True, kw_only=True)
class StoredRow(JournalRow):
    """One graded completion, as it is read back: long texts have lost their middle."""

    id: int
    completion_whole: bool
    """Whether `completion` is all that the model wrote; false where it was too long, or held what no database takes."""
