"""Watchdogs that warn about a broken or odd run.

They know earlier steps only from the lines of metrics.jsonl. A resumed run shows them the existing lines, so they
continue as in a run that was not interrupted.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

Row = Mapping[str, Any]
"""A line of metrics.jsonl; a number that was not finite is None."""

# Optimizer steps between two warnings of one watchdog: at most 50 lines of each kind in 10,000 steps.
SAY_AGAIN = 200


class Watchdog(Protocol):
    """Sees every optimizer step of a run once, in order."""

    @property
    def name(self) -> str:
        """Its name in metrics.jsonl."""
        ...

    def look(self, row: Row) -> str | None:
        """What is wrong at this step and what to do, in one sentence; None if nothing is wrong."""
        ...


class Watch:
    """The watchdogs of a run: which of them warn at a step, and which warnings are printed.

    A warning is printed the first time, and again if `SAY_AGAIN` steps have passed since it was last printed.
    """

    def __init__(self, watchdogs: Sequence[Watchdog]) -> None:
        self._watchdogs = watchdogs
        self._counts: Counter[str] = Counter()
        self._said: dict[str, int] = {}

    def look(self, row: Row) -> tuple[list[str], list[str]]:
        """The names of the watchdogs that warn, and the lines to print."""
        names, lines = [], []
        for watchdog in self._watchdogs:
            sentence = watchdog.look(row)
            if sentence is None:
                continue
            names.append(watchdog.name)
            self._counts[watchdog.name] += 1
            if self._is_to_be_said(watchdog.name, row["step"]):
                count = self._counts[watchdog.name]
                so_far = f" ({watchdog.name}, in {count} steps so far)" if count > 1 else f" ({watchdog.name})"
                lines.append(f"warning at step {row['step']}: {sentence}{so_far}")
        return names, lines

    def summary(self) -> str | None:
        """How often each watchdog has warned, in one line; None if none has."""
        if not self._counts:
            return None
        told = ", ".join(f"{name} {count}" for name, count in self._counts.most_common())
        return (
            f"warnings by number of steps: {told}; see metrics.jsonl for the steps and docs/watchdogs.md for their "
            "meaning"
        )

    def _is_to_be_said(self, name: str, step: int) -> bool:
        if name in self._said and step - self._said[name] < SAY_AGAIN:
            return False
        self._said[name] = step
        return True


# A loss that is shown as 0.0000: each trained token has probability 0.99995, or each pair a margin of 10 nats.
_NO_LOSS = 5e-5

# A spike exceeds the median of the previous steps by this many of their median deviations: 10 are 6.7 standard
# deviations of normal noise. In 20,000 steps without a spike it reports none if the loss varies by 10 % from step to
# step, and 8 if by 30 %; 6 deviations over 20 steps would report 55 and 250.
_SPIKE_DEVIATIONS = 10.0
# A rise by less than this share of the stage's initial loss is no spike, however calm the previous steps were: a loss
# near 0 varies by many times its median.
_SPIKE_SHARE = 0.5
_SPIKE_WINDOW = 50
_SPIKE_FEWEST = 10

# The loss scale starts at 65536 = 2**16 and is halved at each overflow. After 20 in a row it is far below 1, so no
# scale will be found: the gradient itself is too large.
_OVERFLOWS_IN_A_ROW = 20


class NothingToLearn:
    """The loss of a step is 0 to four places, and cannot be lower."""

    name = "nothing_to_learn"

    def __init__(self, reason: str) -> None:
        """`reason` says what that means for the step's rows, and what to do."""
        self._reason = reason

    def look(self, row: Row) -> str | None:
        """Look at `loss`."""
        return f"the loss is 0: {self._reason}" if has_no_loss(row) else None


class ZeroGradient:
    """The gradient is exactly 0, though the step had something to learn."""

    name = "zero_gradient"

    def __init__(self, had_something: Callable[[Row], bool], advice: str) -> None:
        self._had_something = had_something
        self._advice = advice

    def look(self, row: Row) -> str | None:
        """Look at `grad_norm`."""
        if row.get("grad_norm") != 0 or not self._had_something(row):
            return None
        return f"the gradient is 0 with a loss of {row['loss']:.4g}, so no weight changes: {self._advice}"


class LossSpike:
    """The loss is far above that of the previous steps in the same stage; another stage has other data."""

    name = "loss_spike"

    def __init__(self) -> None:
        self._stage: str | None = None
        self._recent: deque[float] = deque(maxlen=_SPIKE_WINDOW)
        self._first: list[float] = []

    def look(self, row: Row) -> str | None:
        """Look at `loss` and `stage`."""
        if row["stage"] != self._stage:
            self._stage = row["stage"]
            self._recent.clear()
            self._first.clear()
        loss = row["loss"]
        usual = self._usual_below(loss)
        self._recent.append(loss)
        if len(self._first) < _SPIKE_FEWEST:
            self._first.append(loss)
        if usual is None:
            return None
        return (
            f"the loss is {loss:.4g}, against a median of {usual:.4g} over the previous steps: if it stays high, go "
            "back to a checkpoint with a lower training.learning_rate, more training.warmup_steps or a lower "
            "training.max_grad_norm; if it falls again, look at the rows of this step"
        )

    def _usual_below(self, loss: float) -> float | None:
        """The median loss of the previous steps, if `loss` is a spike above it."""
        if len(self._recent) < _SPIKE_FEWEST:
            return None
        middle = median(self._recent)
        deviation = median(abs(each - middle) for each in self._recent)
        limit = max(_SPIKE_DEVIATIONS * deviation, _SPIKE_SHARE * abs(median(self._first)))
        return middle if loss - middle > limit else None


class OverflowingGradient:
    """The gradient overflows float16 step after step: each of these steps is skipped, and nothing is trained."""

    name = "overflowing_gradient"

    def __init__(self) -> None:
        self._in_a_row = 0

    def look(self, row: Row) -> str | None:
        """Look at `grad_norm`."""
        self._in_a_row = self._in_a_row + 1 if _is_skipped(row) else 0
        if self._in_a_row < _OVERFLOWS_IN_A_ROW:
            return None
        return (
            f"no weight has changed for {self._in_a_row} steps, because the gradient overflows float16 at any loss "
            "scale: set model.dtype: bfloat16 or float32; if there were good steps before, go back to a "
            "checkpoint with a lower training.learning_rate"
        )


def _is_skipped(row: Row) -> bool:
    """Whether the gradient overflowed in float16; in other dtypes, a non-finite gradient stops the run."""
    return "grad_norm" in row and row["grad_norm"] is None


def has_no_loss(row: Row) -> bool:
    """Whether the loss of a step is 0, to four places."""
    return abs(row["loss"]) <= _NO_LOSS


def training_watchdogs(nothing_to_learn: str) -> list[Watchdog]:
    """Watchdogs of a run whose loss is at least 0; `nothing_to_learn` says what a loss of 0 means and what to do."""
    return [
        NothingToLearn(nothing_to_learn),
        ZeroGradient(
            lambda row: not has_no_loss(row),
            "make sure that the trained weights affect the loss: check lora.target_modules, and that the weights of "
            "model.adapter are not all 0",
        ),
        LossSpike(),
        OverflowingGradient(),
    ]
