"""The hash of the data order: it covers every field and step, can be restored, and is equal in every process."""

import json
import os
import subprocess
import sys
from hashlib import blake2b

import pytest

from posttrain.data.curriculum.curriculum import Curriculum, Draw, Stage
from posttrain.data.curriculum.order_hash import OrderHash, order_hash_after
from posttrain.errors import DataError

CURRICULUM = Curriculum(
    [Stage("one", 4, {"a": 1}), Stage("two", 10, {"a": 0.3, "b": 0.7})],
    {"a": 9, "b": 5},
    rows_per_step=6,
    seed=3,
)

# The order of the set, and so of the mix and the sizes, depends on PYTHONHASHSEED.
IN_ANOTHER_PROCESS = """
from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.curriculum.order_hash import order_hash_after
names = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"}
mix = {name: len(name) / 10 for name in names}
sizes = {name: 3 * len(name) for name in names}
curriculum = Curriculum([Stage("one", 7, mix), Stage("two", 20, {"eta": 1, **mix})], sizes, 5, seed=42)
print(order_hash_after(curriculum, 20))
"""


def hash_of(*draws: Draw) -> str:
    return OrderHash().update(draws)


def test_two_steps_by_hand():
    first, second = Draw("a", 3, 0, "one"), Draw("ü", 1, 2, "two")
    order_hash = OrderHash()
    expected = blake2b(bytes(8) + b'["a", 3, 0, "one"]\n', digest_size=8)
    assert order_hash.update([first]) == expected.hexdigest()
    expected = blake2b(expected.digest() + b'["\\u00fc", 1, 2, "two"]\n', digest_size=8)
    assert order_hash.update([second]) == expected.hexdigest()


def test_every_field_the_order_and_the_steps_count():
    a, b = Draw("a", 1, 0, "one"), Draw("b", 2, 0, "one")
    in_two_steps = OrderHash()
    in_two_steps.update([a])
    in_two_steps.update([b])
    hashes = [
        hash_of(a, b),
        hash_of(b, a),
        hash_of(a),
        hash_of(),
        in_two_steps.state(),
        *(hash_of(a._replace(**change), b) for change in ({"dataset": "c"}, {"row": 2}, {"epoch": 1}, {"stage": "1"})),
        # Names that contain field separators or run into the next field.
        hash_of(Draw('a", 1, 0, "one"]\n["b', 2, 0, "one")),
        hash_of(Draw("a1", 1, 0, "one"), b),
        hash_of(Draw("a", 11, 0, "one"), b),
    ]
    assert len(set(hashes)) == len(hashes)


def test_a_hash_restored_from_its_state_goes_on_the_same():
    through, order_hash = OrderHash(), OrderHash()
    for step in range(CURRICULUM.total_steps):
        logged = through.update(CURRICULUM.step(step))
        order_hash.update(CURRICULUM.step(step))
        order_hash = OrderHash.from_state(json.loads(json.dumps(order_hash.state())))
        assert order_hash.state() == logged == through.state() == order_hash_after(CURRICULUM, step + 1)


def test_no_steps_have_the_hash_of_a_new_run():
    assert order_hash_after(CURRICULUM, 0) == OrderHash().state() == "0" * 16


@pytest.mark.parametrize("state", ["", "abc", "g" * 16, "A" * 16, "0" * 17, "0" * 16 + "\n"])
def test_a_damaged_state_is_refused(state):
    with pytest.raises(DataError, match="order hash"):
        OrderHash.from_state(state)


@pytest.mark.parametrize("steps", [-1, 11])
def test_steps_that_the_curriculum_does_not_have_cannot_be_hashed(steps):
    with pytest.raises(IndexError, match="10 steps"):
        order_hash_after(CURRICULUM, steps)


def test_every_process_and_hash_seed_gives_the_same_order():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4294967295")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().strip()) == 16
