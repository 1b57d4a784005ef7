"""The part of the wire protocol in which a trainer reports its optimizer steps.

The server shows them on its page, next to the rewards; prompts and rewards do not depend on them.
"""

from typing import Annotated

from pydantic import FailFast, Field

from posttrain.dataserver.schemas import Identifier, Iteration, Origin, SlotNumber, WireRequest, WireResponse

MAX_NUMBERS = 200
"""How many numbers a report may contain."""

MAX_NAME_CHARS = 80
"""How long the name of a number may be."""

MAX_VERDICT_CHARS = 200
"""How long a verdict may be."""


class GroupReport(WireRequest):
    """One group of completions that was asked for an optimizer step or trained by it."""

    slot: SlotNumber
    attempt: SlotNumber = 0
    iteration: Iteration | None = None
    """The iteration whose prompt it completes, with `slot` and `attempt` as in the requests for its grades: so the page
    knows which completions it has. An earlier one than the step's if it is replayed, or was carried over."""

    sample_id: Identifier
    dataset: Identifier
    verdict: str = Field(default="", max_length=MAX_VERDICT_CHARS)
    """Why a filter rejected it: the filter's kind, then, after a colon, anything else. Empty if it was accepted."""

    trained: bool
    """Whether the step trained it. A rejected group may be trained all the same, and an accepted spare may not."""

    origin: Origin = "fresh"
    mean_reward: float | None = None
    """Null if none of its completions has a reward."""

    age: Iteration = 0
    """Optimizer steps between the weights that sampled it and the step."""


class StepReport(WireRequest):
    """Reports an optimizer step; another report of the same run and step replaces it."""

    run_id: str = Field(max_length=200)
    config_id: str | None = None
    """If given, a server with a different config answers 409."""

    step: Iteration
    numbers: dict[Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)], float | None] = Field(
        default={}, max_length=MAX_NUMBERS
    )
    """What the trainer logs, by name."""

    groups: Annotated[list[GroupReport], FailFast()] = Field(default=[])
    """At most `limits.max_items` of `/meta`."""

    first: bool = False
    """Whether a run starts here, anew or resumed: what it reported of later steps is then forgotten."""


class StepResponse(WireResponse):
    """The step has been stored."""

    run_id: str
    step: int
