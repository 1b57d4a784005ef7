"""A completion that is graded without a server, and what comes out."""

from dataclasses import dataclass
from typing import NamedTuple

from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import GradeResult


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a model wrote, and which row it answers."""

    place: str
    """Where it stands, as a message names it."""
    number: int
    """Its line in the file, or its row in the journal."""
    sample_id: str
    iteration: int
    text: str
    completion_tokens: int | None
    truncated: bool | None


class Judged(NamedTuple):
    """What became of a completion."""

    target: Target
    stage: str
    """The stage whose graders judged it, as `stage_of` names it."""
    result: GradeResult


def stage_of(loaded: Loaded, target: Target, iteration: int) -> str:
    """The stage whose graders judge a completion; `validation` for held-out rows, which all stages judge alike."""
    return "validation" if target.is_held_out else loaded.config.stages[loaded.sampler.stage_index(iteration)].name


def graded_line(completion: Completion, judged: Judged) -> dict[str, object]:
    """What a line of output says of a completion."""
    target, stage, result = judged
    return {
        "dataset": target.dataset,
        "sample_id": completion.sample_id,
        "iteration": completion.iteration,
        "stage": stage,
        **result.model_dump(exclude={"item_id"}),
        "prompt": target.prompt,
        "gold": target.gold,
        "completion": completion.text,
        "completion_tokens": completion.completion_tokens,
        "truncated": completion.truncated,
    }
