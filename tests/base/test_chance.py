"""Hashes used as random numbers."""

from posttrain.base.chance import chance


def test_chance_is_the_same_on_every_machine() -> None:
    assert chance(0, "slot", 7, 3) == 0.3888568884503486


def test_chance_depends_on_every_argument_and_on_where_one_ends() -> None:
    asked = [(1, 23), (12, 3), (1, 2, 3), (123,), ("1", 23), ("a", 1), ("a1",)]
    assert len({chance(*arguments) for arguments in asked}) == len(asked)


def test_chance_is_uniform() -> None:
    counts = [0] * 10
    for number in range(10_000):
        counts[int(chance("uniform", number) * 10)] += 1
    # 1000 each; the standard deviation is 30.
    assert all(880 < count < 1120 for count in counts)
