"""The order of a stage's data sets, compared with the rule's definition and its exact error bound."""

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data.curriculum.period import MAX_PERIOD, Period, integer_shares

SHARES = st.lists(st.integers(1, 40), min_size=1, max_size=15).map(
    lambda counts: {f"set{index:02}": n for index, n in enumerate(counts)}
)


def order(period: Period) -> list[str]:
    return [period.names[dataset] for dataset in period.seq]


def by_definition(shares: dict[str, int]) -> list[str]:
    """The chairman-assignment rule with fractions, slot by slot, as in the paper."""
    if len(shares) == 1:
        return list(shares) * sum(shares.values())
    total, slack = sum(shares.values()), Fraction(1, 2 * len(shares) - 2)
    counts = dict.fromkeys(shares, 0)
    chosen = []
    for t in range(1, total + 1):
        owed = {name: Fraction(n * t, total) - counts[name] for name, n in shares.items()}
        urgency = {d: (1 - slack - owed[d]) * total / shares[d] for d in shares if owed[d] >= slack}
        name = min(urgency, key=lambda d: (urgency[d], d))
        chosen.append(name)
        counts[name] += 1
    return chosen


def test_two_to_one_by_hand():
    # 1/κ = 1/2. t=1: a is owed 2/3 and b 1/3, so only a is eligible. t=2: a 1/3, b 2/3. t=3: a 1, b 0.
    period = Period({"b": 1, "a": 2})
    assert order(period) == ["a", "b", "a"]
    assert list(period.rank) == [0, 0, 1]


def test_three_data_sets_by_hand():
    # 1/κ = 1/4. t=1: all are eligible; c, at (3/4 − 1/2)·4/2 = 1/2, precedes a and b, at (3/4 − 1/4)·4 = 2.
    # t=2: c is owed 0; a and b tie at (3/4 − 1/2)·4 = 1, and a comes first by name.
    # t=3: b is at (3/4 − 3/4)·4 = 0, c at (3/4 − 1/2)·2 = 1/2. t=4: c.
    period = Period({"a": 1, "b": 1, "c": 2})
    assert order(period) == ["c", "a", "b", "c"]
    assert list(period.rank) == [0, 0, 0, 1]


def test_one_data_set_has_every_slot():
    period = Period({"only": 1})
    assert [period.at(index) for index in range(3)] == [("only", 0), ("only", 1), ("only", 2)]
    assert period.counts(5) == {"only": 5}


@settings(deadline=None)
@given(SHARES)
def test_the_queue_gives_what_the_rule_says(shares):
    assert order(Period(shares)) == by_definition(shares)


@settings(deadline=None)
@given(SHARES, st.randoms(use_true_random=False))
def test_the_order_of_the_mapping_does_not_matter(shares, random):
    items = list(shares.items())
    random.shuffle(items)
    assert order(Period(dict(items))) == order(Period(shares))


def assert_bounded(period: Period, share: dict[str, Fraction], length: int) -> None:
    """Check |count_d(t) − w_d·t| ≤ 1 − 1/(2D − 2) for t = 1..length, multiplied out to integers."""
    datasets = len(share)
    bound = Fraction(0) if datasets == 1 else 1 - Fraction(1, 2 * datasets - 2)
    scale = math.lcm(*(w.denominator for w in share.values()))
    weight = {name: int(w * scale) for name, w in share.items()}
    counts = dict.fromkeys(share, 0)
    for t in range(1, length + 1):
        counts[period.at(t - 1)[0]] += 1
        worst = max(abs(counts[name] * scale - weight[name] * t) for name in share)
        assert worst * bound.denominator <= bound.numerator * scale, (t, counts)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcdefghijklmno"),
        st.integers(1, 100).map(lambda n: n / 100),
        min_size=1,
        max_size=15,
    )
)
def test_every_prefix_is_within_the_bound_of_the_weights(weights):
    total = sum(Fraction(str(weight)) for weight in weights.values())
    share = {name: Fraction(str(weight)) / total for name, weight in weights.items()}
    period = Period(integer_shares(weights))
    assert_bounded(period, share, 2 * len(period) + 7)


@pytest.mark.parametrize("datasets", [2, 4, 15])
def test_every_prefix_of_the_longest_period_is_within_the_bound(datasets):
    shares = integer_shares({f"set{index:02}": math.sqrt(index + 2) for index in range(datasets)})
    period = Period(shares)
    assert len(period) == MAX_PERIOD
    assert_bounded(period, {name: Fraction(n, MAX_PERIOD) for name, n in shares.items()}, MAX_PERIOD)


@settings(deadline=None)
@given(SHARES, st.integers(0, 3000))
def test_counts_and_ranks_agree_with_counting(shares, length):
    period = Period(shares)
    counts = dict.fromkeys(shares, 0)
    for index in range(length):
        name, earlier = period.at(index)
        assert earlier == counts[name]
        counts[name] += 1
    assert period.counts(length) == counts


def test_the_longest_period_of_four_is_built_in_less_than_a_second():
    shares = integer_shares({f"set{index}": math.sqrt(index + 2) for index in range(4)})
    start = time.process_time()
    Period(shares)
    assert time.process_time() - start < 1.0
