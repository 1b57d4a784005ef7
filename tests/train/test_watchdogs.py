"""Which lines of metrics.jsonl each watchdog warns about, and how, with hand-computed numbers."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.train.watchdogs import (
    SAY_AGAIN,
    LossSpike,
    NothingToLearn,
    OverflowingGradient,
    Watch,
    Watchdog,
    ZeroGradient,
    has_no_loss,
)


def row(step: int = 1, **values: Any) -> dict[str, Any]:
    return {"step": step, "stage": "one", "loss": 1.0, "grad_norm": 1.0, "learning_rate": 1e-4, **values}


def losses(values: Iterable[float], stage: str = "one") -> list[dict[str, Any]]:
    return [row(step, loss=loss, stage=stage) for step, loss in enumerate(values, start=1)]


def warned(watchdog: Watchdog, rows: Iterable[dict[str, Any]]) -> list[int]:
    """The steps at which it warns."""
    return [each["step"] for each in rows if watchdog.look(each) is not None]


# Ten losses with median 1.1 and median deviation 0.1. A spike is more than 1.0 above the median: 10 deviations, which
# exceeds 0.55, half of the initial loss.
UNEVEN = [1.0, 1.2] * 5


def test_a_spike_is_ten_median_deviations_above_the_median():
    assert warned(LossSpike(), losses([*UNEVEN, 2.05])) == []
    assert warned(LossSpike(), losses([*UNEVEN, 2.15])) == [11]


def test_where_the_loss_stands_still_a_spike_is_half_of_the_first_losses_above_it():
    assert warned(LossSpike(), losses([1.0] * 10 + [1.45])) == []
    assert warned(LossSpike(), losses([1.0] * 10 + [1.55])) == [11]
    # The loss began at 4, so near 0 it may vary by 2.
    assert warned(LossSpike(), losses([4.0] * 10 + [0.01] * 60 + [1.9, 2.1])) == [72]


def test_nine_steps_are_too_few_to_call_anything_a_spike():
    assert warned(LossSpike(), losses([*UNEVEN[:9], 100.0])) == []


def test_another_stage_has_losses_of_its_own():
    watchdog = LossSpike()
    assert warned(watchdog, losses(UNEVEN)) == []
    assert warned(watchdog, losses([50.0] * 10, stage="two")) == []
    assert warned(watchdog, losses([100.0], stage="two")) == [1]


def test_a_spike_is_told_with_its_numbers_and_what_to_do():
    watchdog = LossSpike()
    said = [watchdog.look(each) for each in losses([*UNEVEN, 7.0])][-1]
    assert said is not None
    assert "7, against a median of 1.1" in said
    assert "training.learning_rate" in said and "training.max_grad_norm" in said


@given(st.lists(st.floats(1.0, 1.4), max_size=120))
def test_a_loss_that_stays_within_four_tenths_of_what_it_began_with_is_no_spike(values: list[float]):
    assert warned(LossSpike(), losses(values)) == []


@given(st.lists(st.floats(0.5, 1.5), min_size=10, max_size=60), st.floats(20, 1e6))
def test_a_loss_far_above_all_before_is_always_one(values: list[float], spike: float):
    # The median deviation of numbers from 0.5 to 1.5 is at most 1, so 10 deviations are at most 10. One of the numbers
    # may be a spike too: 1.5 is one after many 0.5s.
    assert warned(LossSpike(), losses([*values, spike]))[-1:] == [len(values) + 1]


@pytest.mark.parametrize(("loss", "warns"), [(0.0, True), (4e-5, True), (-4e-5, True), (6e-5, False), (-0.3, False)])
def test_a_loss_of_0_to_four_places_teaches_nothing(loss: float, warns: bool):
    assert warned(NothingToLearn("rows are easy"), [row(loss=loss)]) == [1] * warns


def test_a_gradient_of_0_is_wrong_only_where_there_was_something_to_learn():
    watchdog = ZeroGradient(lambda each: not has_no_loss(each), "see lora.target_modules")
    rows = [row(1), row(2, grad_norm=0.0), row(3, grad_norm=0.0, loss=0.0), row(4, grad_norm=None), row(5)]
    assert warned(watchdog, rows) == [2]
    said = watchdog.look(row(grad_norm=0.0, loss=2.5))
    assert said is not None and "loss of 2.5" in said and "lora.target_modules" in said


def gradients(norms: Iterable[float | None]) -> list[dict[str, Any]]:
    return [row(step, grad_norm=norm) for step, norm in enumerate(norms, start=1)]


def test_a_gradient_that_overflows_twenty_times_running_is_told():
    watchdog = OverflowingGradient()
    assert warned(watchdog, gradients([None] * 19)) == []
    said = watchdog.look(row(20, grad_norm=None))
    assert said is not None and said.startswith("no weight has changed for 20 steps, because the gradient overflows")
    assert "model.dtype: bfloat16 or float32" in said and "training.learning_rate" in said
    said = watchdog.look(row(21, grad_norm=None))
    assert said is not None and "for 21 steps" in said


def test_one_step_that_is_taken_between_begins_the_count_of_overflows_again():
    # 19 overflows before it and 19 after it; the 20th after it is step 40.
    norms = [None] * 19 + [0.5] + [None] * 20
    assert warned(OverflowingGradient(), gradients(norms[:-1])) == []
    assert warned(OverflowingGradient(), gradients(norms)) == [40]


def test_a_step_without_a_norm_of_its_gradient_is_no_overflow():
    rows = [{key: value for key, value in each.items() if key != "grad_norm"} for each in gradients([1.0] * 30)]
    assert warned(OverflowingGradient(), rows) == []


def test_while_the_scale_of_the_loss_is_found_nothing_is_wrong():
    # 65536 falls below 1 after 17 halvings.
    assert warned(OverflowingGradient(), gradients([None] * 17 + [0.5] * 9)) == []


class Odd:
    """Warns at the given steps."""

    def __init__(self, name: str, steps: Iterable[int]) -> None:
        self.name = name
        self._steps = frozenset(steps)

    def look(self, row: Any) -> str | None:
        return f"{self.name} is odd" if row["step"] in self._steps else None


def test_a_watchdog_that_warns_at_every_step_is_said_once_in_200():
    assert SAY_AGAIN == 200
    watch = Watch([Odd("a", range(3, 500)), Odd("b", [4])])
    found = [watch.look(row(step)) for step in range(1, 500)]
    assert [names for names, _ in found[:5]] == [[], [], ["a"], ["a", "b"], ["a"]]
    assert [line for _, lines in found for line in lines] == [
        "warning at step 3: a is odd (a)",
        "warning at step 4: b is odd (b)",
        "warning at step 203: a is odd (a, in 201 steps so far)",
        "warning at step 403: a is odd (a, in 401 steps so far)",
    ]
    summary = watch.summary()
    assert summary is not None and summary.startswith("warnings by number of steps: a 497, b 1;")


def test_where_nothing_was_wrong_there_is_no_summary():
    watch = Watch([Odd("a", [])])
    assert watch.look(row()) == ([], [])
    assert watch.summary() is None


def all_watchdogs() -> list[Watchdog]:
    return [
        NothingToLearn("rows are easy"),
        ZeroGradient(lambda each: not has_no_loss(each), "see"),
        LossSpike(),
        OverflowingGradient(),
    ]


ANY_ROW = st.fixed_dictionaries(
    {
        "loss": st.sampled_from([0.0, 1.0, 1.2, 30.0]),
        "grad_norm": st.sampled_from([0.0, 1.0, None]),
        "learning_rate": st.sampled_from([0.0, 1e-4]),
        "stage": st.sampled_from(["one"] * 9 + ["two"]),
    }
)


@given(st.lists(ANY_ROW, min_size=1, max_size=60), st.data())
def test_a_resumed_run_warns_as_the_run_left_alone(values: list[dict[str, Any]], data: st.DataObject):
    rows = [row(step, **each) for step, each in enumerate(values, start=1)]
    done = data.draw(st.integers(0, len(rows)))
    alone, resumed = Watch(all_watchdogs()), Watch(all_watchdogs())
    whole = [alone.look(each) for each in rows]
    for each in rows[:done]:
        resumed.look(each)
    assert [resumed.look(each) for each in rows[done:]] == whole[done:]
    assert resumed.summary() == alone.summary()


def test_the_rate_of_false_alarms_is_what_the_comment_on_it_says():
    # 20,000 log-normal losses with σ = 0.1, from a generator written out here.
    state, values = 1, []
    for _ in range(20_000):
        uniform = []
        for _ in range(2):
            state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            uniform.append(((state >> 11) + 0.5) / (1 << 53))
        values.append(math.exp(0.1 * math.sqrt(-2 * math.log(uniform[0])) * math.cos(2 * math.pi * uniform[1])))
    assert warned(LossSpike(), losses(values)) == []
