"""Which row fills each slot: shares in every prefix, whole epochs, and continuation across stages."""

import pickle
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data.curriculum.curriculum import Curriculum, Draw, Stage
from posttrain.errors import ConfigError

SIZES = {"chat": 10, "code": 7, "maths": 1}
TWO_STAGES = [
    Stage("warm-up", 3, {"chat": 1.0}),
    Stage("main", 8, {"chat": 0.5, "code": 0.25, "maths": 0.25}),
]

WEIGHT = st.integers(0, 20).map(lambda n: n / 10)
MIX = st.fixed_dictionaries({"chat": WEIGHT, "code": WEIGHT, "maths": WEIGHT}).filter(lambda mix: any(mix.values()))


@st.composite
def curricula(draw) -> Curriculum:
    stages, end = [], 0
    for index in range(draw(st.integers(1, 3))):
        end += draw(st.integers(1, 12))
        stages.append(Stage(f"stage{index}", end, draw(MIX)))
    sizes = draw(st.fixed_dictionaries(dict.fromkeys(SIZES, st.integers(1, 30))))
    return Curriculum(stages, sizes, draw(st.integers(1, 8)), draw(st.integers(0, 2**40)))


def all_draws(curriculum: Curriculum) -> list[Draw]:
    return [draw for step in range(curriculum.total_steps) for draw in curriculum.step(step)]


def test_stages_change_exactly_at_until_step():
    curriculum = Curriculum(TWO_STAGES, SIZES, rows_per_step=4, seed=0)
    assert curriculum.total_steps == 8
    assert [{draw.stage for draw in curriculum.step(step)} for step in range(8)] == [{"warm-up"}] * 3 + [{"main"}] * 5


def test_shares_of_a_stage_by_hand():
    curriculum = Curriculum(TWO_STAGES, SIZES, rows_per_step=4, seed=0)
    # 2 : 1 : 1 over four slots gives chat, code, maths, chat (worked out in test_period.py under other names).
    for step in range(3, 8):
        assert [draw.dataset for draw in curriculum.step(step)] == ["chat", "code", "maths", "chat"]
    assert curriculum.draws_per_dataset(0) == {"chat": 12}
    assert curriculum.draws_per_dataset(1) == {"chat": 10, "code": 5, "maths": 5}
    assert curriculum.epochs_per_dataset() == {"chat": 22 / 10, "code": 5 / 7, "maths": 5.0}


def test_a_data_set_goes_on_where_the_stage_before_left_it():
    # The first stage draws 12 rows of chat: epoch 0 with its 10 rows and two rows of epoch 1. The second stage draws
    # 10: the other eight of epoch 1 and two of epoch 2.
    curriculum = Curriculum(TWO_STAGES, SIZES, rows_per_step=4, seed=5)
    chat = [draw for draw in all_draws(curriculum) if draw.dataset == "chat"]
    assert [draw.epoch for draw in chat] == [0] * 10 + [1] * 10 + [2] * 2
    second_epoch = [(draw.row, draw.stage) for draw in chat if draw.epoch == 1]
    assert sorted(row for row, _ in second_epoch) == list(range(10))
    assert [stage for _, stage in second_epoch] == ["warm-up"] * 2 + ["main"] * 8


def test_each_epoch_has_an_order_of_its_own():
    curriculum = Curriculum([Stage("all", 3, {"chat": 1.0})], SIZES, rows_per_step=10, seed=0)
    orders = [tuple(draw.row for draw in curriculum.step(epoch)) for epoch in range(3)]
    assert len(set(orders)) == 3


def test_a_data_set_of_weight_zero_keeps_its_place_and_may_be_empty():
    stages = [
        Stage("one", 1, {"a": 1.0}),
        Stage("two", 2, {"a": 0.0, "b": 1.0, "none": 0.0}),
        Stage("3", 3, {"a": 1}),
    ]
    curriculum = Curriculum(stages, {"a": 4, "b": 9, "none": 0}, rows_per_step=2, seed=0)
    rows = [draw.row for draw in all_draws(curriculum) if draw.dataset == "a"]
    assert sorted(rows) == [0, 1, 2, 3]
    assert "none" not in curriculum.epochs_per_dataset()


@settings(deadline=None)
@given(curricula())
def test_each_row_comes_exactly_once_per_epoch(curriculum):
    for dataset, size in curriculum.sizes.items():
        drawn = [draw for draw in all_draws(curriculum) if draw.dataset == dataset]
        assert [draw.epoch for draw in drawn] == [index // size for index in range(len(drawn))]
        for start in range(0, len(drawn), size):
            rows = [draw.row for draw in drawn[start : start + size]]
            assert set(rows) <= set(range(size))
            assert len(set(rows)) == len(rows)


@settings(deadline=None)
@given(curricula())
def test_every_prefix_of_every_stage_is_within_one_row_of_its_shares(curriculum):
    draws = all_draws(curriculum)
    for index, stage in enumerate(curriculum.stages):
        exact = {name: Fraction(str(weight)) for name, weight in stage.weights.items() if weight}
        share = {name: weight / sum(exact.values()) for name, weight in exact.items()}
        bound = 0 if len(share) == 1 else 1 - Fraction(1, 2 * len(share) - 2)
        counts = dict.fromkeys(share, 0)
        for t, draw in enumerate((draw for draw in draws if draw.stage == stage.name), start=1):
            counts[draw.dataset] += 1
            assert all(abs(counts[name] - share[name] * t) <= bound for name in share)
        assert curriculum.draws_per_dataset(index) == counts


@settings(deadline=None)
@given(curricula(), st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 3)]))
def test_ranks_and_micro_batches_do_not_change_the_rows(curriculum, shape):
    ranks, micro_batch = shape
    slots = range(curriculum.rows_per_step)
    for step in reversed(range(curriculum.total_steps)):
        # Each rank has its own curriculum and asks only for its part of each micro-step, in reverse order.
        seen = {}
        for rank in range(ranks):
            own = pickle.loads(pickle.dumps(curriculum))
            for slot in reversed(slots):
                if slot // micro_batch % ranks == rank:
                    seen[slot] = own.draw(step, slot)
        assert [seen[slot] for slot in slots] == curriculum.step(step)


def test_more_stages_of_the_same_mix_change_nothing_but_the_stage_name():
    # A stage that ends after whole periods (5 rows) leaves the next one at the same point of the period.
    mix = {"chat": 0.6, "code": 0.4}
    whole = Curriculum([Stage("all", 10, mix)], SIZES, rows_per_step=5, seed=2)
    parts = Curriculum([Stage("first", 4, mix), Stage("second", 10, mix)], SIZES, rows_per_step=5, seed=2)
    assert [draw[:3] for draw in all_draws(whole)] == [draw[:3] for draw in all_draws(parts)]


def test_seeds_change_the_rows_and_not_the_data_sets():
    one, other = (Curriculum(TWO_STAGES, SIZES, rows_per_step=4, seed=seed) for seed in (0, 1))
    assert [draw.dataset for draw in all_draws(one)] == [draw.dataset for draw in all_draws(other)]
    assert [draw.row for draw in all_draws(one)] != [draw.row for draw in all_draws(other)]


@pytest.mark.parametrize(
    ("stages", "rows_per_step", "message"),
    [
        ([], 4, "at least one stage"),
        ([Stage("a", 5, {"chat": 1})], 0, "at least 1 row per optimizer step, not 0"),
        ([Stage("a", 0, {"chat": 1})], 4, "stage 'a': until_step is 0, .* raise it to 1 or more"),
        (
            [Stage("a", 5, {"chat": 1}), Stage("b", 5, {"chat": 1})],
            4,
            "stage 'b': until_step is 5.* 6 or more",
        ),
        ([Stage("a", 5, {"chat": 1}), Stage("a", 9, {"chat": 1})], 4, "two stages with this name"),
        ([Stage("a", 5, {"chta": 1})], 4, "stage 'a'.*'chta'; known: chat, code, empty, maths"),
        ([Stage("a", 5, {"chat": 1, "chta": 0})], 4, "stage 'a'.*'chta'"),
        ([Stage("a", 5, {"chat": 1, "empty": 0.1})], 4, "stage 'a'.*'empty' has no rows"),
        ([Stage("a", 5, {"chat": 1}), Stage("b", 9, {"code": -1})], 4, "stage 'b': data set 'code'.*-1"),
        ([Stage("a", 5, {"chat": 0})], 4, "stage 'a': no data set has a positive weight"),
        ([Stage("a", 5, {"chat": 1, "code": 1e-9})], 4, "stage 'a': data set 'code'.*less than one row"),
    ],
)
def test_a_curriculum_that_cannot_be_followed_is_refused(stages, rows_per_step, message):
    with pytest.raises(ConfigError, match=message):
        Curriculum(stages, SIZES | {"empty": 0}, rows_per_step, seed=0)


@pytest.mark.parametrize(("step", "slot"), [(-1, 0), (8, 0), (0, -1), (0, 4)])
def test_steps_and_slots_out_of_range_are_index_errors(step, slot):
    curriculum = Curriculum(TWO_STAGES, SIZES, rows_per_step=4, seed=0)
    with pytest.raises(IndexError):
        curriculum.draw(step, slot)


@pytest.mark.parametrize("step", [-1, 8])
def test_there_is_no_step_outside_the_run(step):
    curriculum = Curriculum(TWO_STAGES, SIZES, rows_per_step=4, seed=0)
    with pytest.raises(IndexError):
        curriculum.step(step)


@given(st.integers(0, 9), st.integers(0, 3))
def test_the_rows_that_are_drawn_up_to_a_step_are_those_of_its_steps(steps: int, seed: int):
    stages = [Stage("one", 4, {"a": 1}), Stage("two", 9, {"a": 1, "b": 3})]
    curriculum = Curriculum(stages, {"a": 13, "b": 5, "c": 2}, rows_per_step=2, seed=seed)
    draws = [draw for step in range(steps) for draw in curriculum.step(step)]
    found = {name: sorted(rows) for name, rows in curriculum.drawn_rows(steps).items() if rows}
    assert found == {name: sorted({draw.row for draw in draws if draw.dataset == name}) for name in found}
    assert set(found) == {draw.dataset for draw in draws}
