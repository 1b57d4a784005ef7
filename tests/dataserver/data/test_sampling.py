"""Which rows an iteration draws: a pure function that skips no row and keeps the mix in every prefix."""

import random
import time
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataserver.dataserver_cases import make_config
from posttrain.data.curriculum.permutation import permute, round_keys
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.sampling import Sampler, Sides, Slot
from posttrain.errors import ConfigError

ROOT = Path("/data")


def stage(name: str, until: int, mix: Mapping[str, float]) -> dict[str, Any]:
    return {"name": name, "until_step": until, "mix": mix}


def configured(sizes: Mapping[str, int], stages: list[dict[str, Any]], **keys: Any) -> DataserverConfig:
    return make_config(ROOT, {name: {} for name in sizes}, stages=stages, **keys)


def sampler(config: DataserverConfig, sizes: Mapping[str, int]) -> Sampler:
    return Sampler(config, {name: Sides(range(size), np.arange(0)) for name, size in sizes.items()})


def drawn(one: Sampler, config: DataserverConfig, end: int) -> list[list[Slot]]:
    """The slots of every drawn iteration below `end`."""
    size, stride = config.prompts_per_iteration, config.iteration_stride
    return [one.slots(iteration, 0, size, "train") for iteration in range(0, end, stride)]


NAMES = ["a", "b", "c", "d"]


@st.composite
def curricula(draw: st.DrawFn) -> tuple[DataserverConfig, dict[str, int]]:
    """A config of up to four data sets, each in some mix, and three stages, each with at least one iteration."""
    names = NAMES[: draw(st.integers(1, 4))]
    sizes = {name: draw(st.integers(1, 12)) for name in names}
    stride = draw(st.integers(1, 3))
    stages, end = [], 0
    for number in range(draw(st.integers(1, 3))):
        # Long enough to contain an iteration divisible by the stride.
        end += draw(st.integers(stride, stride + 4))
        mix = {name: draw(st.sampled_from([0, 0.25, 1, 2, 7])) for name in names}
        mix[draw(st.sampled_from(names))] = 1
        stages.append(stage(f"stage {number}", end, mix))
    for name in names:
        stages[-1]["mix"][name] = stages[-1]["mix"][name] or 1
    config = configured(
        sizes,
        stages,
        seed=draw(st.integers(0, 3)),
        prompts_per_iteration=draw(st.integers(1, 7)),
        iteration_stride=stride,
    )
    return config, sizes


def by_hand(config: DataserverConfig, sizes: Mapping[str, int]) -> list[list[Slot]]:
    """What `drawn` must return, computed slot by slot from the start with exact fractions."""
    had = Counter[str]()
    iterations: list[list[Slot]] = []
    start = 0
    for each in config.stages:
        weights = {name: Fraction(str(weight)) for name, weight in sorted(each.mix.items()) if weight}
        whole = sum(weights.values())
        shares = {name: weight / whole for name, weight in weights.items()}
        in_stage = Counter[str]()
        for iteration in range(start, each.until_step):
            if iteration % config.iteration_stride:
                continue
            slots = []
            for slot in range(config.prompts_per_iteration):
                name = _owed_most(shares, in_stage)
                epoch, position = divmod(had[name], sizes[name])
                row = permute(position, sizes[name], round_keys(config.seed, name, epoch))
                slots.append(Slot(slot, name, row))
                had[name] += 1
                in_stage[name] += 1
            iterations.append(slots)
        start = each.until_step
    return iterations


def _owed_most(shares: Mapping[str, Fraction], had: Counter[str]) -> str:
    """Tijdeman's rule for n data sets: among those owed at least 1/(2n − 2), the one with the earliest deadline."""
    if len(shares) == 1:
        return next(iter(shares))
    slack = Fraction(1, 2 * len(shares) - 2)
    now = had.total() + 1
    owed = {name: share * now - had[name] for name, share in shares.items()}
    ready = [name for name in shares if owed[name] >= slack]
    return min(ready, key=lambda name: ((1 - slack - owed[name]) / shares[name], name))


@given(curricula())
def test_every_draw_is_what_a_walk_from_the_start_gives(case: tuple[DataserverConfig, dict[str, int]]) -> None:
    config, sizes = case
    assert drawn(sampler(config, sizes), config, config.total_iterations) == by_hand(config, sizes)


def test_the_index_of_a_draw_follows_the_formula_of_the_curriculum() -> None:
    """Within a stage: (iteration // m − ⌈a / m⌉) · S + offset + slot, with stride m, stage start a and S slots."""
    sizes = {"a": 1000, "b": 1000}
    stages = [stage("first", 5, {"a": 1}), stage("second", 12, {"b": 1})]
    config = configured(sizes, stages, prompts_per_iteration=4, iteration_stride=3)
    one = sampler(config, sizes)
    keys = {name: round_keys(config.seed, name, 0) for name in sizes}
    for iteration, name, start in [(0, "a", 0), (3, "a", 0), (6, "b", 5), (9, "b", 5)]:
        for slot in range(4):
            index = (iteration // 3 - -(-start // 3)) * 4 + slot
            assert one.slots(iteration, slot, 1, "train") == [Slot(slot, name, permute(index, 1000, keys[name]))]


@given(curricula(), st.data())
def test_pages_add_up_to_the_iteration_in_any_order_and_any_process(
    case: tuple[DataserverConfig, dict[str, int]], data: st.DataObject
) -> None:
    config, sizes = case
    size, stride = config.prompts_per_iteration, config.iteration_stride
    iteration = data.draw(st.integers(0, config.total_iterations // stride + 3)) * stride
    cuts = sorted(data.draw(st.sets(st.integers(0, size))) | {0, size})
    pages = [(start, end - start) for start, end in pairwise(cuts)]
    random.Random(data.draw(st.integers(0, 99))).shuffle(pages)
    one, other = sampler(config, sizes), sampler(config, sizes)
    found = {offset: one.slots(iteration, offset, count, "train") for offset, count in pages}
    assert [slot for offset in sorted(found) for slot in found[offset]] == other.slots(iteration, 0, size, "train")


@given(curricula())
def test_the_mix_is_kept_in_every_prefix_of_a_stage(case: tuple[DataserverConfig, dict[str, int]]) -> None:
    config, sizes = case
    one = sampler(config, sizes)
    start = 0
    for each in config.stages:
        weights = {name: Fraction(str(weight)) for name, weight in each.mix.items() if weight}
        whole, sets = sum(weights.values()), len(weights)
        bound = 1 - Fraction(1, 2 * sets - 2) if sets > 1 else Fraction(0)
        had, length = Counter[str](), 0
        first = -(-start // config.iteration_stride) * config.iteration_stride
        for iteration in range(first, each.until_step, config.iteration_stride):
            for slot in one.slots(iteration, 0, config.prompts_per_iteration, "train"):
                had[slot.dataset] += 1
                length += 1
                assert set(had) <= set(weights)
                assert all(abs(had[name] - weights[name] * length / whole) <= bound for name in weights)
        start = each.until_step


@given(curricula())
def test_every_row_comes_once_per_epoch_also_across_stages(case: tuple[DataserverConfig, dict[str, int]]) -> None:
    config, sizes = case
    rows: dict[str, list[int]] = {name: [] for name in sizes}
    for slots in drawn(sampler(config, sizes), config, 3 * config.total_iterations):
        for slot in slots:
            rows[slot.dataset].append(slot.index)
    for name, size in sizes.items():
        epochs = [rows[name][begin : begin + size] for begin in range(0, len(rows[name]), size)]
        for epoch in epochs:
            assert len(set(epoch)) == len(epoch)
            assert len(epoch) < size or set(epoch) == set(range(size))


def test_a_data_set_goes_on_where_an_earlier_stage_left_it() -> None:
    sizes = {"a": 40, "b": 40}
    mixes = [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}]
    config = configured(sizes, [stage(f"s{number}", 2 * number + 2, mix) for number, mix in enumerate(mixes)])
    rows = [slot for slots in drawn(sampler(config, sizes), config, 6) for slot in slots]
    # 16 of a, 16 of b, then 8 of each: no row is repeated.
    assert Counter(slot.dataset for slot in rows) == {"a": 24, "b": 24}
    assert len({(slot.dataset, slot.index) for slot in rows}) == 48


def test_another_seed_is_another_order() -> None:
    sizes = {"a": 1000}
    orders = [
        [slot.index for slot in sampler(config, sizes).slots(0, 0, 8, "train")]
        for config in (configured(sizes, [stage("all", 9, {"a": 1})], seed=seed) for seed in range(20))
    ]
    assert len({tuple(order) for order in orders}) == 20


def test_a_stage_ends_where_it_says() -> None:
    sizes = {"a": 9, "b": 9}
    stages = [stage("first", 5, {"a": 1}), stage("second", 9, {"b": 1})]
    for stride, last_of_first, first_of_second in [(1, 4, 5), (2, 4, 6), (3, 3, 6)]:
        config = configured(sizes, stages, iteration_stride=stride)
        one = sampler(config, sizes)
        asked = [{slot.dataset for slot in one.slots(at, 0, 8, "train")} for at in (last_of_first, first_of_second)]
        assert asked == [{"a"}, {"b"}]
        assert [one.stage_index(at) for at in (0, 4, 5, 8, 9, 10**30)] == [0, 0, 1, 1, 1, 1]


@given(curricula(), st.integers(0, 50))
def test_iterations_past_the_end_go_on_with_the_last_stage(
    case: tuple[DataserverConfig, dict[str, int]], later: int
) -> None:
    config, sizes = case
    longer = config.stages[-1].model_copy(update={"until_step": config.total_iterations + 100})
    extended = config.model_copy(update={"stages": (*config.stages[:-1], longer)})
    iteration = (config.total_iterations // config.iteration_stride + later) * config.iteration_stride
    if iteration < extended.total_iterations:
        at = (iteration, 0, config.prompts_per_iteration, "train")
        assert sampler(config, sizes).slots(*at) == sampler(extended, sizes).slots(*at)


def test_iterations_past_the_end_are_refused_where_the_config_says_so() -> None:
    sizes = {"a": 9}
    config = configured(sizes, [stage("all", 5, {"a": 1})], after_last_stage="refuse")
    one = sampler(config, sizes)
    assert len(one.slots(4, 0, 8, "train")) == 8
    with pytest.raises(ConfigError, match="iteration 5 is beyond the last stage, which ends at 5"):
        one.slots(5, 0, 1, "train")


def test_huge_iterations_are_as_fast_as_small_ones() -> None:
    sizes = {"a": 999_983, "b": 7}
    last = 10**15
    config = configured(
        sizes, [stage("first", 3, {"a": 1}), stage("all", last, {"a": 3, "b": 1})], prompts_per_iteration=1000
    )
    one = sampler(config, sizes)
    begin = time.perf_counter()
    slots = one.slots(last - 1, 0, 1000, "train")
    assert time.perf_counter() - begin < 1
    assert Counter(slot.dataset for slot in slots) == {"a": 750, "b": 250}
    with pytest.raises(ConfigError, match="beyond the last stage"):
        one.slots(10**15, 0, 1, "train")


def test_far_past_the_end_it_goes_on_for_longer_than_anybody_trains() -> None:
    sizes = {"a": 9}
    config = configured(sizes, [stage("all", 5, {"a": 1})])
    assert len(sampler(config, sizes).slots(2**40 - 1, 0, 8, "train")) == 8
    with pytest.raises(ConfigError, match="beyond the last stage"):
        sampler(config, sizes).slots(2**40, 0, 1, "train")


@pytest.mark.parametrize(
    ("iteration", "offset", "count", "message"),
    [
        (0, 0, 9, "offset 0 + batch_size 9 is more than the 8 prompts that an iteration has (prompts_per_iteration)"),
        (0, 8, 1, "offset 8 + batch_size 1 is more than the 8 prompts that an iteration has (prompts_per_iteration)"),
        (3, 0, 1, "iteration 3 is not drawn: only multiples of iteration_stride 2 are"),
    ],
)
def test_slots_that_are_not_there_are_refused(iteration: int, offset: int, count: int, message: str) -> None:
    sizes = {"a": 9}
    config = configured(sizes, [stage("all", 5, {"a": 1})], iteration_stride=2)
    with pytest.raises(ConfigError) as error:
        sampler(config, sizes).slots(iteration, offset, count, "train")
    assert str(error.value) == message


def test_the_plan_counts_what_a_stage_draws() -> None:
    sizes = {"a": 9, "b": 9}
    stages = [stage("first", 5, {"a": 1}), stage("second", 9, {"a": 1, "b": 3})]
    config = configured(sizes, stages, iteration_stride=2)
    one = sampler(config, sizes)
    # Iterations 0, 2 and 4; then 6 and 8.
    assert [one.draws_per_dataset(number) for number in range(2)] == [{"a": 24}, {"a": 4, "b": 12}]
