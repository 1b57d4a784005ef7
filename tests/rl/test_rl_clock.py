"""The clock's arithmetic, and every refusal; test_rl_clock_proof.py holds it against the trainer itself."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataserver.dataserver_cases import make_config
from posttrain.dataserver.data.sampling import Sampler, Sides
from posttrain.errors import ConfigError
from posttrain.rl.clock import Clock, Place, require_within_curriculum


def clock(P: int, G: int, GA: int, SPG: int, mu: int = 1, W: int = 1) -> Clock:
    return Clock(P, W, G, GA, SPG, mu)


ONCE_A_STEP = clock(P=4, G=2, GA=2, SPG=2)
TWICE_A_STEP = clock(P=4, G=2, GA=2, SPG=1)
EVERY_OTHER_STEP = clock(P=4, G=2, GA=2, SPG=4)
TWO_PASSES = clock(P=4, G=2, GA=2, SPG=2, mu=2)
TWO_RANKS = clock(P=4, G=2, GA=2, SPG=2, W=2)
GROUP_OVER_TWO_RANKS = clock(P=2, G=4, GA=1, SPG=1, W=2)
ODD_MICRO_BATCHES = clock(P=3, G=2, GA=2, SPG=2)


@pytest.mark.parametrize(
    ("one", "prompts", "micro_steps", "steps", "per_iteration", "stride"),
    [
        # 4·2/2 prompts for 2 micro-steps, which are one step.
        (ONCE_A_STEP, 4, 2, [0, 1, 2, 3, 4, 5], 4, 1),
        # 4·1/2 prompts for 1 micro-step, half a step; a step has 2·2.
        (TWICE_A_STEP, 2, 1, [0, 0, 1, 1, 2, 2], 4, 1),
        # 4·4/2 prompts for 4 micro-steps, two steps.
        (EVERY_OTHER_STEP, 8, 4, [0, 2, 4, 6, 8, 10], 8, 2),
        # 4·2/2 prompts, gone through twice in 2·2 micro-steps, two steps.
        (TWO_PASSES, 4, 4, [0, 2, 4, 6, 8, 10], 4, 2),
        # 4·2·2/2
        (TWO_RANKS, 8, 2, [0, 1, 2, 3, 4, 5], 8, 1),
        # 2·2·1/4
        (GROUP_OVER_TWO_RANKS, 1, 1, [0, 1, 2, 3, 4, 5], 1, 1),
        # 3·2/2
        (ODD_MICRO_BATCHES, 3, 2, [0, 1, 2, 3, 4, 5], 3, 1),
    ],
    ids=["once a step", "twice a step", "every other step", "two passes", "two ranks", "group over ranks", "odd P"],
)
def test_the_worked_numbers(
    one: Clock, prompts: int, micro_steps: int, steps: list[int], per_iteration: int, stride: int
) -> None:
    assert one.prompts_per_generation == prompts
    assert one.micro_steps_per_generation == micro_steps
    assert [one.iteration_of(generation) for generation in range(6)] == steps
    assert [one.iteration_of(one.generation_of(generation * prompts)) for generation in range(6)] == steps
    assert (one.prompts_per_iteration, one.iteration_stride) == (per_iteration, stride)


def test_rows_of_one_step_made_in_two_generations_fill_its_slots_one_after_the_other() -> None:
    # Rows 0-1 are generation 0, rows 2-3 generation 1, both of step 0; rows 4-5 generation 2, of step 1.
    places = [TWICE_A_STEP.place(row) for row in range(6)]
    assert places == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]


def test_rows_that_serve_two_steps_belong_to_the_first_of_them() -> None:
    assert [TWO_PASSES.place(row) for row in (0, 3, 4, 7, 8)] == [(0, 0), (0, 3), (2, 0), (2, 3), (4, 0)]


def test_five_steps_of_which_two_share_a_generation_take_three_generations() -> None:
    # ⌈5·2/4⌉·4, and 4 rows more from the seventh step on.
    assert [TWO_PASSES.rows_needed(steps) for steps in (1, 2, 4, 5, 6, 7)] == [4, 4, 8, 12, 12, 16]


def test_a_clock_of_steps_divides_them_into_micro_batches_and_generates_once_for_each() -> None:
    assert Clock.of_step(16, 4, 2, 8) == clock(P=4, G=8, GA=2, SPG=2, W=2)
    assert Clock.of_step(16, 4, 1, 8, steps_per_generation=8, iterations=3) == clock(P=4, G=8, GA=4, SPG=8, mu=3)
    assert Clock.of_step(16, 4, 2, 8).rows_per_step == 16


@st.composite
def clocks(draw: st.DrawFn) -> Clock:
    micro_batch_size, processes = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    generations, accumulation_steps = draw(st.integers(2, 8)), draw(st.integers(1, 6))
    iterations = draw(st.integers(1, 4))
    fitting = [
        number
        for number in range(1, generations * accumulation_steps + 1)
        if micro_batch_size * processes * number % generations == 0
        and (number * iterations % accumulation_steps == 0 or accumulation_steps % (number * iterations) == 0)
    ]
    steps_per_generation = draw(st.sampled_from(fitting))
    return Clock(micro_batch_size, processes, generations, accumulation_steps, steps_per_generation, iterations)


def simulated(one: Clock, max_steps: int) -> list[int]:
    """By generation, the step in which it is made: counted out micro-step by micro-step, as the trainer does."""
    served = one.steps_per_generation * one.iterations
    return [
        micro_step // one.accumulation_steps
        for micro_step in range(max_steps * one.accumulation_steps)
        if micro_step % served == 0
    ]


@given(clocks(), st.integers(1, 12))
def test_a_run_counted_out_micro_step_by_micro_step_generates_when_the_clock_says(one: Clock, max_steps: int) -> None:
    steps = simulated(one, max_steps)
    rows = range(one.rows_needed(max_steps))
    assert len(rows) * one.generations == len(steps) * one.completions_per_generation
    assert [one.place(row).iteration for row in rows[:: one.prompts_per_generation]] == steps


@given(clocks(), st.integers(1, 12))
def test_the_rows_fill_every_slot_of_every_iteration_once_and_in_order(one: Clock, max_steps: int) -> None:
    places = [one.place(row) for row in range(one.rows_needed(max_steps))]
    iterations, slots = range(0, max_steps, one.iteration_stride), range(one.prompts_per_iteration)
    assert places == [Place(iteration, slot) for iteration in iterations for slot in slots]


@given(clocks(), st.integers(0, 50))
def test_a_generation_is_one_request_within_an_iteration(one: Clock, generation: int) -> None:
    rows = [generation * one.prompts_per_generation + number for number in range(one.prompts_per_generation)]
    iteration, offset = one.place(rows[0])
    assert [one.place(row) for row in rows] == [(iteration, offset + number) for number in range(len(rows))]
    assert offset + len(rows) <= one.prompts_per_iteration


@given(clocks(), st.integers(0, 50))
def test_a_step_is_aligned_where_a_generation_begins_with_it(one: Clock, step: int) -> None:
    generation = one.generation_of(one.first_row_at(step))
    micro_step = generation * one.micro_steps_per_generation
    assert one.is_aligned(step) == (micro_step == step * one.accumulation_steps)
    assert one.is_aligned(step) == (one.place(one.first_row_at(step)) == (step, 0))
    below, above = one.nearest_aligned(step)
    assert [number for number in range(below, above + 1) if one.is_aligned(number)] == [below, above]
    assert below <= step < above


@pytest.mark.parametrize("one", [ONCE_A_STEP, TWICE_A_STEP, EVERY_OTHER_STEP, TWO_PASSES, TWO_RANKS])
def test_a_dataserver_of_the_clocks_shape_draws_every_row_once_before_one_comes_again(one: Clock) -> None:
    rows, max_steps = one.rows_needed(20), 20
    config = make_config(
        Path("/data"),
        {"a": {}, "b": {}},
        prompts_per_iteration=one.prompts_per_iteration,
        iteration_stride=one.iteration_stride,
        stages=[
            {"name": "one", "until_step": max_steps // 2, "mix": {"a": 1}},
            {"name": "two", "until_step": max_steps, "mix": {"a": 1, "b": 1}},
        ],
    )
    # The first half of the rows is a's, and of the second half every other one.
    sizes = {"a": rows // 4 * 3, "b": rows // 4}
    sampler = Sampler(config, {name: Sides(range(size), np.arange(0)) for name, size in sizes.items()})
    one.require_same_shape(config.prompts_per_iteration, config.iteration_stride)
    drawn = Counter[tuple[str, int]]()
    for first in range(0, rows, one.prompts_per_generation):
        place = one.place(first)
        slots = sampler.slots(place.iteration, place.slot, one.prompts_per_generation, "train")
        drawn.update((slot.dataset, slot.index) for slot in slots)
    assert drawn == {(name, index): 1 for name, size in sizes.items() for index in range(size)}


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1, 2, 2, 2, 1), "training.micro_batch_size: 0 is too few; at least 1"),
        ((4, 0, 2, 2, 2, 1), "number of processes: 0 is too few; at least 1"),
        ((4, 1, -1, 2, 2, 1), "rollout.generations: -1 is too few; at least 1"),
        ((4, 1, 2, 0, 2, 1), "training.rows_per_step, in micro-batches: 0 is too few; at least 1"),
        ((4, 1, 2, 2, 0, 1), "rollout.steps_per_generation: 0 is too few; at least 1"),
        ((4, 1, 2, 2, 2, 0), "rollout.iterations: 0 is too few; at least 1"),
        ((4, 1, 1, 2, 2, 1), "rollout.generations: 1 leaves a completion nothing to be judged against; at least 2"),
        (
            (4, 2, 6, 2, 2, 1),
            "rollout.generations: 6 does not divide the 16 completions of one generation (training.micro_batch_size 4 "
            "× 2 processes × 2 steps per generation); choose a number that does, or make rollout.steps_per_generation "
            "a multiple of 3",
        ),
        (
            (4, 1, 2, 3, 2, 1),
            "rollout.steps_per_generation: 2 × rollout.iterations 1 = 2 micro-batches do not fit the 3 of an optimizer "
            "step (training.rows_per_step 12 in micro-batches of 4 × 1 process): steps would differ in their number "
            "of prompts; choose a product that divides 3 or is a multiple of it",
        ),
    ],
)
def test_numbers_that_no_training_can_have_are_refused_with_what_to_do(numbers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Clock(*numbers)
    assert str(refused.value) == message


@pytest.mark.parametrize(("rows_per_step", "micro_batch_size"), [(12, 4), (0, 4), (4, 4)])
def test_a_step_that_the_processes_cannot_share_is_refused(rows_per_step: int, micro_batch_size: int) -> None:
    with pytest.raises(ConfigError) as refused:
        Clock.of_step(rows_per_step, micro_batch_size, 2, 2)
    assert str(refused.value) == (
        f"training.rows_per_step: {rows_per_step} is not a multiple of training.micro_batch_size 4 × 2 processes; "
        "choose a multiple of 8"
    )


def test_micro_batches_of_no_rows_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="micro_batch_size: 0 is too few"):
        Clock.of_step(12, 0, 1, 2)


def test_saving_inside_a_generation_is_refused_with_the_number_whose_multiples_are_not() -> None:
    one = clock(P=4, G=2, GA=2, SPG=4, mu=2)
    one.require_aligned(8, "run.save_every")
    with pytest.raises(ConfigError) as refused:
        one.require_aligned(7, "run.save_every")
    assert str(refused.value) == (
        "run.save_every: 7 falls into the middle of a generation, which serves 4 optimizer steps "
        "(rollout.steps_per_generation 4 × rollout.iterations 2, with 2 micro-batches in a step); "
        "choose a multiple of 4"
    )


def test_a_checkpoint_inside_a_generation_is_refused_with_its_neighbours() -> None:
    one = clock(P=4, G=2, GA=2, SPG=4, mu=2)
    one.require_resumable(8)
    with pytest.raises(ConfigError) as refused:
        one.require_resumable(6)
    assert str(refused.value) == (
        "the checkpoint of step 6 lies in the middle of a generation, which serves 4 optimizer steps "
        "(rollout.steps_per_generation 4 × rollout.iterations 2, with 2 micro-batches in a step); "
        "resume from one of step 4 or 8"
    )


def test_where_every_step_generates_every_step_can_be_saved_and_resumed() -> None:
    for step in range(10):
        TWICE_A_STEP.require_aligned(step, "run.save_every")
        TWICE_A_STEP.require_resumable(step)


def test_training_beyond_the_last_stage_is_refused_unless_it_is_wanted() -> None:
    require_within_curriculum(200, 200)
    require_within_curriculum(201, 200, beyond_last_stage=True)
    with pytest.raises(ConfigError) as refused:
        require_within_curriculum(201, 200)
    assert str(refused.value) == (
        "training.max_steps: 201 is beyond the dataserver's last stage, which ends at 200; lower it, lengthen the "
        "stage, or set dataserver.beyond_last_stage: true to go on with that stage's mix"
    )


@pytest.mark.parametrize(
    ("one", "reason", "wanted"),
    [
        (TWO_RANKS, "training.rows_per_step 16, 2 completions for each prompt", (8, 1)),
        (
            clock(P=4, G=2, GA=4, SPG=2, mu=2),
            "training.rows_per_step 16, 2 completions for each prompt, each trained on 2 times",
            (4, 1),
        ),
        (EVERY_OTHER_STEP, "16 completions of one generation, 2 for each prompt, serve 2 optimizer steps", (8, 2)),
    ],
    ids=["once a step", "two passes", "every other step"],
)
def test_a_dataserver_of_another_shape_is_refused_with_both_numbers_that_it_needs(
    one: Clock, reason: str, wanted: tuple[int, int]
) -> None:
    one.require_same_shape(*wanted)
    for given_shape in ((wanted[0] + 1, wanted[1]), (wanted[0], wanted[1] + 1)):
        with pytest.raises(ConfigError) as refused:
            one.require_same_shape(*given_shape)
        assert str(refused.value) == (
            f"the dataserver's prompts_per_iteration: {given_shape[0]} and iteration_stride: {given_shape[1]} do not "
            f"fit this training: {reason}. In the dataserver's config set prompts_per_iteration: {wanted[0]} and "
            f"iteration_stride: {wanted[1]}, or change training and rollout here"
        )
