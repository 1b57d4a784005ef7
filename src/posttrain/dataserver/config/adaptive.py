"""Config section `adaptive`: sampling by earlier grades, and shares of the slots that change over the run.

Shares are exact fractions, so the number of slots filled before an iteration is a formula and not a counter.
"""

from fractions import Fraction
from math import floor
from typing import Annotated

from pydantic import Field, model_validator

from posttrain.config.schedule import Points, Schedule
from posttrain.config.strict import StrictModel


def easy_numbers(share: Schedule, draw: int, stride: int, slots: int) -> range:
    """The rows of the easy data set that draw number `draw` takes, numbered over the whole run.

    Up to and including draw d the run takes ⌊slots·Σ share⌋ rows, so that each draw takes ⌊slots·share + u⌋ with u in
    [0, 1), and the total so far is always within one row of its share.
    """
    return range(floor(slots * share.total(draw, stride)), floor(slots * share.total(draw + 1, stride)))


def replay_slots(replay: Fraction, easy: Fraction, left: int, chance: float) -> int:
    """⌊replay/(1 − easy)·left + chance⌋: how many of the `left` slots that are not easy are replayed.

    `left` is (1 − easy)·slots on average, so for a chance uniform in [0, 1) the result is replay·slots on average; it
    never exceeds `left`.
    """
    return floor(replay / (1 - easy) * left + Fraction(chance)) if left else 0


Share = Annotated[float, Field(ge=0, le=1)]
SharePoints = Points[Share]


class PoolsConfig(StrictModel):
    """Draws rows that are always solved, or never, less often.

    The curriculum still decides which data set fills a slot. The row is kept with a probability equal to its pool's
    weight; otherwise another row of the same data set is drawn at random and tested in the same way, if possible one
    that is not yet in the iteration. After 64 draws the last row is used, whatever its pool.
    """

    solved_at: float = Field(default=1.0, ge=0, le=1)
    """Rows with at least this mean reward count as solved."""

    unsolved_at: float = Field(default=0.0, ge=0, le=1)
    """Rows with at most this mean reward count as unsolved."""

    min_grades: int = Field(default=4, ge=1)
    """Rows with fewer graded completions belong to neither pool."""

    solved_weight: Share = 0.1
    """Probability of keeping a solved row; 0 retires it. Rows in neither pool are always kept."""

    unsolved_weight: Share = 0.5
    """Probability of keeping an unsolved row; 0 retires it."""

    @model_validator(mode="after")
    def _pools_are_apart(self) -> "PoolsConfig":
        if self.unsolved_at >= self.solved_at:
            raise ValueError(
                f"a row with mean reward {self.solved_at:g} would be both solved and unsolved; set unsolved_at below "
                "solved_at"
            )
        return self


class EasyConfig(StrictModel):
    """Fills some slots from an easier data set, so that there is reward to learn from early on."""

    dataset: str = Field(min_length=1)
    """The data set; no stage needs to name it. Its rows have an order of their own, each used once before any
    repeats."""

    share: SharePoints
    """Share of the slots by iteration, such as `{"0": 0.5, "200": 0}`: linear between the points, constant outside."""


class ReplayConfig(StrictModel):
    """Fills some slots with rows that were asked before, those with the most left to learn.

    These have the highest upper confidence bound v + exploration·√(ln N / n), where v = 4p(1 − p), p is the row's mean
    reward, n its number of grades and N the number of all grades. Rows that are in the iteration anyway, and those that
    a pool retires, are skipped. If too few remain, the curriculum fills the slots.
    """

    share: SharePoints
    """Share of the slots by iteration, such as `{"0": 0, "50": 0.25}`: linear between the points, constant outside."""

    exploration: float = Field(default=0.5, ge=0)
    """How strongly rows with few grades are preferred."""

    min_grades: int = Field(default=2, ge=1)
    """Rows with fewer graded completions are not replayed."""


class AdaptiveConfig(StrictModel):
    """Chooses rows by the grades of earlier iterations. The rows of an iteration are decided at its first request, kept
    in the journal, and the same from then on, for all replicas of the server."""

    lag: int = Field(default=2, ge=1)
    """Iteration i depends on the grades of iterations up to i − lag·iteration_stride. The default suits trainers that
    fetch an iteration's prompts before the previous iteration is graded."""

    pools: PoolsConfig | None = None
    """Pools by difficulty."""

    easy: EasyConfig | None = None
    """An easier data set."""

    replay: ReplayConfig | None = None
    """Earlier rows to ask again."""

    @model_validator(mode="after")
    def _something_adapts(self) -> "AdaptiveConfig":
        if self.pools is None and self.easy is None and self.replay is None:
            raise ValueError("the section has no effect; add pools, easy or replay, or remove it")
        return self

    @model_validator(mode="after")
    def _shares_fit_together(self) -> "AdaptiveConfig":
        if self.easy is None or self.replay is None:
            return self
        easy, replay = Schedule(self.easy.share), Schedule(self.replay.share)
        # Between two points both are linear, so their sum is largest at a point.
        for iteration in sorted({*self.easy.share, *self.replay.share}):
            if easy.at(iteration) + replay.at(iteration) > 1:
                raise ValueError(
                    f"at iteration {iteration} easy.share is {float(easy.at(iteration)):g} and replay.share "
                    f"{float(replay.at(iteration)):g}, together more than 1; lower one of them"
                )
        return self
