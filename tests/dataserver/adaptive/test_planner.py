"""Which rows an iteration asks, given the statistics of the rows."""

from collections import Counter
from math import nextafter
from pathlib import Path

import pytest
from adaptive_cases import SLOTS, adaptive_config, all_rows, statistics

from posttrain.dataserver.adaptive.planner import PlannedRow, Planner, Reason, RowPlace, pool_weight
from posttrain.dataserver.config.adaptive import PoolsConfig
from posttrain.dataserver.journal.plans import RowStatistics, Statistics
from posttrain.dataserver.runtime import Loaded

SOLVED, UNSOLVED, HALF = (1.0, 8), (0.0, 8), (0.5, 8)


def planner(loaded: Loaded) -> Planner:
    assert loaded.config.adaptive is not None
    return Planner(loaded, loaded.config.adaptive)


def plans(loaded: Loaded, iterations: int, known: Statistics | None = None) -> list[list[PlannedRow]]:
    """The plans of the first iterations, all from the same statistics."""
    stride = loaded.config.iteration_stride
    return [planner(loaded).plan(number * stride, known or {}) for number in range(iterations)]


def places(plan: list[PlannedRow], *reasons: Reason) -> list[RowPlace]:
    """The rows asked for these reasons; all rows if no reason is given."""
    return [(row.dataset, row.number) for row in plan if not reasons or row.reason in reasons]


def curriculum(loaded: Loaded, iteration: int) -> list[RowPlace]:
    return [(slot.dataset, slot.index) for slot in loaded.sampler.slots(iteration, 0, SLOTS, "train")]


def test_without_grades_the_pools_leave_the_curriculum_alone(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"pools": {"solved_weight": 0, "unsolved_weight": 0}})
    for iteration, plan in enumerate(plans(loaded, 20)):
        assert places(plan, "curriculum") == curriculum(loaded, iteration)


def test_retired_rows_do_not_come(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"pools": {"solved_weight": 0, "unsolved_weight": 0}})
    retired = {("hard", number): SOLVED if number % 2 else UNSOLVED for number in range(20)}
    retired |= {("more", number): SOLVED for number in range(6)}
    for iteration, plan in enumerate(plans(loaded, 40, statistics(loaded, retired))):
        assert not retired.keys() & {*places(plan)}
        kept = [row for row in curriculum(loaded, iteration) if row not in retired]
        assert places(plan, "curriculum") == kept


def test_the_shares_of_the_data_sets_stay_those_of_the_curriculum(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"pools": {"solved_weight": 0, "unsolved_weight": 0.25}})
    known = statistics(loaded, {("hard", number): SOLVED if number % 2 else UNSOLVED for number in range(25)})
    for iteration, plan in enumerate(plans(loaded, 20, known)):
        assert [row.dataset for row in plan] == [dataset for dataset, _ in curriculum(loaded, iteration)]


def test_a_row_is_kept_as_often_as_its_weight_says(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"pools": {"solved_weight": 0.25}}, prompts_per_iteration=64)
    solved = {("hard", number) for number in range(10)}
    known = statistics(loaded, dict.fromkeys(solved, SOLVED))
    asked, kept = 0, 0
    for plan in plans(loaded, 50, known):
        asked += sum(row.dataset == "hard" for row in plan) * len(solved) / 30
        kept += sum(row in solved for row in places(plan, "curriculum"))
    # The curriculum asks 2400 rows of `hard`, 800 of them solved; a quarter of those stay, give or take 12.
    assert asked == 800
    assert abs(kept - 200) < 48


def test_where_nothing_else_is_left_retired_rows_fill_the_slots(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"pools": {"solved_weight": 0}})
    known = statistics(loaded, dict.fromkeys([*all_rows(loaded, "hard"), *all_rows(loaded, "more")], SOLVED))
    for plan in plans(loaded, 5, known):
        assert [row.reason for row in plan] == ["pool"] * SLOTS


def test_a_row_that_is_drawn_instead_is_not_asked_twice(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"pools": {"solved_weight": 0}})
    known = statistics(loaded, {("hard", number): SOLVED for number in range(15)})
    redrawn = [(places(plan), places(plan, "pool")) for plan in plans(loaded, 40, known)]
    assert sum(len(drawn) for _, drawn in redrawn) > 80
    assert all(Counter(asked)[row] == 1 for asked, drawn in redrawn for row in drawn)


def test_a_row_is_drawn_twice_where_the_data_set_has_too_few(tmp_path: Path) -> None:
    sizes = {"hard": 4, "more": 2}
    loaded = adaptive_config(tmp_path, {"pools": {"solved_weight": 0}}, sizes)
    known = statistics(loaded, {("hard", number): SOLVED for number in range(3)})
    for plan in plans(loaded, 10, known):
        assert {row for row in places(plan) if row[0] == "hard"} == {("hard", 3)}


def test_each_easy_row_comes_once_before_any_comes_again(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"easy": {"dataset": "easy", "share": {0: 0.5, 40: 0.25}}})
    counts = dict.fromkeys(all_rows(loaded, "easy"), 0)
    for plan in plans(loaded, 40):
        for row in places(plan, "easy"):
            counts[row] += 1
        assert max(counts.values()) - min(counts.values()) <= 1
    # The sum of 8 slots · (0.5 − iteration/160) is 121.
    assert sum(counts.values()) == 121


def test_easy_shares_are_right_in_every_beginning_of_the_run(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"easy": {"dataset": "easy", "share": {0: 0.5, 20: 0.0}}})
    counts = [len(places(plan, "easy")) for plan in plans(loaded, 30)]
    # 8 slots · (0.5 − iteration/40): 4, 3.8, 3.6, …
    for end in range(1, 31):
        wanted = sum(max(0.0, 4 - iteration / 5) for iteration in range(end))
        assert wanted - 1 < sum(counts[:end]) <= wanted + 1e-9
    assert counts[20:] == [0] * 10


def test_easy_rows_take_no_held_out_row_and_any_slot(tmp_path: Path) -> None:
    easy = {"dataset": "easy", "share": {0: 0.5}}
    loaded = adaptive_config(tmp_path, {"easy": easy}, easy={"validation_fraction": 0.3})
    train = {("easy", int(number)) for number in loaded.sides["easy"].train}
    assert len(train) == 7
    made = plans(loaded, 20)
    assert {row for plan in made for row in places(plan, "easy")} == train
    assert {slot for plan in made for slot, row in enumerate(plan) if row.reason == "easy"} == set(range(SLOTS))


def test_a_data_set_that_the_stages_draw_from_too_is_easy_in_another_order(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"easy": {"dataset": "more", "share": {0: 0.25}}})
    drawn = [row for iteration in range(4) for row in curriculum(loaded, iteration) if row[0] == "more"]
    easy = [row for plan in plans(loaded, 4) for row in places(plan, "easy")]
    assert len({*drawn}) == len({*easy}) == 8
    assert {*drawn} != {*easy}


def test_the_stride_skips_no_easy_row(tmp_path: Path) -> None:
    easy = {"easy": {"dataset": "easy", "share": {0: 0.5}}}
    every = adaptive_config(tmp_path, easy)
    third = adaptive_config(tmp_path, easy, iteration_stride=3)
    for one, other in zip(plans(every, 10), plans(third, 10), strict=True):
        assert sorted(places(one, "easy")) == sorted(places(other, "easy"))


def test_the_best_rows_are_asked_again(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"replay": {"share": {0: 0.25}, "exploration": 0}})
    best = [("hard", 3), ("hard", 8), ("more", 2), ("hard", 20)]
    known = statistics(loaded, {**dict.fromkeys(all_rows(loaded, "hard"), UNSOLVED), **dict.fromkeys(best, HALF)})
    for iteration, plan in enumerate(plans(loaded, 20, known)):
        asked = curriculum(loaded, iteration)
        replayed = places(plan, "replay")
        assert len(replayed) == 2
        assert set(replayed) <= set(best) - set(asked)
        assert all(row == asked[slot] for slot, row in enumerate(places(plan)) if plan[slot].reason == "curriculum")
        assert len(set(places(plan))) == SLOTS


def test_rows_with_too_few_grades_and_retired_rows_are_not_asked_again(tmp_path: Path) -> None:
    replay = {"share": {0: 1.0}, "min_grades": 8}
    loaded = adaptive_config(tmp_path, {"replay": replay, "pools": {"unsolved_weight": 0}}, {"hard": 500, "more": 500})
    rows = {("hard", number): (0.5, 7) if number % 2 else UNSOLVED for number in range(100)}
    rows |= dict.fromkeys([("hard", 100), ("more", 3)], (0.125, 8))
    replayed = {row for plan in plans(loaded, 10, statistics(loaded, rows)) for row in places(plan, "replay")}
    assert replayed == {("hard", 100), ("more", 3)}


def test_a_row_that_is_asked_again_is_not_drawn_as_well(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"replay": {"share": {0: 0.5}}, "pools": {"solved_weight": 0}})
    known = statistics(loaded, {("hard", number): SOLVED if number < 18 else HALF for number in range(30)})
    made = plans(loaded, 40, known)
    assert {row.reason for plan in made for row in plan} == {"curriculum", "pool", "replay"}
    assert all(Counter(places(plan))[row] == 1 for plan in made for row in places(plan, "pool", "replay"))


def test_where_too_few_rows_were_seen_the_curriculum_fills_the_slots(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, {"replay": {"share": {0: 1.0}}})
    assert [places(plan, "curriculum") for plan in plans(loaded, 5)] == [curriculum(loaded, i) for i in range(5)]
    known = statistics(loaded, dict.fromkeys([("hard", 1), ("hard", 2), ("more", 3)], HALF))
    for iteration, plan in enumerate(plans(loaded, 20, known)):
        unasked = {("hard", 1), ("hard", 2), ("more", 3)} - set(curriculum(loaded, iteration))
        assert set(places(plan, "replay")) == unasked
        assert len(places(plan, "curriculum")) == SLOTS - len(unasked)


def test_replayed_shares_are_right_on_average(tmp_path: Path) -> None:
    shares = {"easy": {"dataset": "easy", "share": {0: 0.3}}, "replay": {"share": {0: 0.0, 100: 0.5}}}
    loaded = adaptive_config(tmp_path, shares, {"hard": 2000, "more": 500, "easy": 10})
    known = statistics(loaded, {("hard", number): HALF for number in range(1000)})
    counts = [len(places(plan, "replay")) for plan in plans(loaded, 101, known)]
    # 8 slots · iteration/200, summed up to 100, is 202; each count is off by less than 1, and by 0 on average.
    assert counts[0] == 0
    assert 3 <= counts[100] <= 5
    assert abs(sum(counts) - 202) < 20


def test_the_order_of_the_statistics_does_not_matter(tmp_path: Path) -> None:
    adaptive = {"pools": {}, "replay": {"share": {0: 0.5}}, "easy": {"dataset": "easy", "share": {0: 0.25}}}
    loaded = adaptive_config(tmp_path, adaptive)
    known = statistics(loaded, {row: (SOLVED, UNSOLVED, HALF)[row[1] % 3] for row in all_rows(loaded, "hard")})
    assert plans(loaded, 10, known) == plans(loaded, 10, dict(reversed(known.items())))
    assert len({row.reason for plan in plans(loaded, 10, known) for row in plan}) == 4


@pytest.mark.parametrize(("lag", "stride", "last"), [(1, 1, 11), (2, 1, 10), (3, 4, 0)])
def test_the_lag_counts_sets_of_prompts(tmp_path: Path, lag: int, stride: int, last: int) -> None:
    loaded = adaptive_config(tmp_path, {"pools": {}, "lag": lag}, iteration_stride=stride)
    assert planner(loaded).last_graded(12) == last


POOLS = PoolsConfig(solved_at=0.75, unsolved_at=0.25, min_grades=4, solved_weight=0.125, unsolved_weight=0.5)


@pytest.mark.parametrize(
    ("count", "mean", "weight"),
    [
        (4, 0.75, 0.125),
        (4, 1.0, 0.125),
        (4, 0.74, 1.0),
        (4, 0.26, 1.0),
        (4, 0.25, 0.5),
        (9, 0.0, 0.5),
        (3, 1.0, 1.0),
        (3, 0.0, 1.0),
    ],
)
def test_the_mean_reward_decides_once_there_are_enough_grades(count: int, mean: float, weight: float) -> None:
    assert pool_weight(POOLS, RowStatistics(count, mean)) == weight


def test_a_row_without_grades_is_in_no_pool() -> None:
    assert pool_weight(POOLS, None) == 1.0


def test_the_order_in_which_rewards_were_added_does_not_decide() -> None:
    pools = PoolsConfig(solved_at=0.6, unsolved_at=0.2, solved_weight=0.0)
    assert pool_weight(pools, RowStatistics(4, nextafter(0.6, 0))) == 0.0
    assert pool_weight(pools, RowStatistics(4, nextafter(0.2, 1))) == pools.unsolved_weight
