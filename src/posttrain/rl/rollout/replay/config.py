"""The keys of `rollout` that train rollouts of earlier steps again."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from posttrain.config.schedule import Points
from posttrain.config.strict import StrictModel

Share = Annotated[float, Field(ge=0, le=1)]


class RolloutReplayConfig(StrictModel):
    """Trains whole groups of earlier steps again, corrected for the weights that sampled them. Only groups of the same
    data set and the same graders take a slot."""

    share: Share | Points[Share]
    """Share of a generation's groups, at most; or by optimizer step, such as `{"0": 0, "50": 0.25}`: linear between the
    points and constant outside."""

    fill: Literal["rejected", "reserved"] = "rejected"
    """Which slots are filled: those whose group the filters rejected, before substitutes are asked; or slots that are
    reserved, for which nothing is generated."""

    choose: Literal["spread", "recent", "uniform"] = "spread"
    """Which groups are preferred: at random with weight 4p(1 − p), where p is the mean reward; the most recent; or any
    at random."""

    max_age: int = Field(default=8, ge=1)
    """Optimizer steps after which a group is no longer used, counted from the weights that sampled it."""

    max_uses: int = Field(default=2, ge=1)
    """How often a group is replayed."""

    max_masked_share: float = Field(default=0.5, gt=0, le=1)
    """A group is not used again if more than this share of its tokens was beyond the limits of the importance
    correction."""

    max_bytes: int = Field(default=2**31, ge=1)
    """Size of the stored groups that can still be used; beyond it the oldest are given up. Files that a kept checkpoint
    needs come on top."""

    @property
    def largest_share(self) -> float:
        """The largest `share` of the run."""
        return max(self.share.values()) if isinstance(self.share, Mapping) else self.share

    @property
    def told(self) -> str:
        """What is replayed, for a plan, on one line."""
        slots = "in place of rejected ones" if self.fill == "rejected" else "in reserved slots"
        return (
            f"up to {self.largest_share:.0%} of the groups, {slots}; choose {self.choose}, at most "
            f"{self.max_age} steps old and {self.max_uses} times"
        )

    @model_validator(mode="after")
    def _replays_something(self) -> "RolloutReplayConfig":
        if self.largest_share == 0:
            raise ValueError("share: 0 never replays anything; leave the section out")
        if self.largest_share == 1 and self.fill == "reserved":
            raise ValueError("share: 1 with fill: reserved leaves nothing to generate, and so to replay; choose less")
        return self


class SuccessesConfig(StrictModel):
    """Remembers a solution of each prompt, and puts it into a later group of that prompt that failed throughout.

    The solution is chosen by its reward, so the gradient is biased towards it.
    """

    threshold: float = Field(default=1.0, gt=0, le=1)
    """Lowest reward of a solution; a group failed if all its rewards are below."""

    share: float = Field(gt=0, le=1)
    """Share of the failed groups that get one, if there is one."""

    max_age: int = Field(default=200, ge=1)
    """Optimizer steps after which a solution is no longer used."""

    @property
    def told(self) -> str:
        """What is remembered, for a plan, on one line."""
        return (
            f"a solution (reward of {self.threshold:g} or more, at most {self.max_age} steps old) is put into "
            f"{self.share:.0%} of the groups that failed"
        )


def require_ages_hold(
    replay: RolloutReplayConfig | None, successes: SuccessesConfig | None, staleness: int, stride: int
) -> None:
    """Raise ValueError if what is stored is always too old to be used.

    A generation n is sampled by the weights after (n − k)·m steps and stored by step n·m. At the earliest, generation
    n + k + 1 can replay it, and n + 1 take its solutions; each is trained for m steps.

    Args:
        staleness: k.
        stride: m.
    """
    youngest = {"replay": 2 * staleness + 2, "successes": staleness + 2}
    for name, section in (("replay", replay), ("successes", successes)):
        needed = youngest[name] * stride - 1
        if section is not None and section.max_age < needed:
            raise ValueError(
                f"{name}: max_age: {section.max_age} can never be met: with staleness {staleness} and {stride} "
                f"optimizer step{'s' * (stride > 1)} per generation, even the newest are {needed} steps old when they "
                f"are used for the last time; set it to {needed} or more"
            )
