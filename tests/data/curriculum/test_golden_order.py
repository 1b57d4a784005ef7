"""The data order of known curricula, as the first version of this package drew it.

A run can only be resumed or verified if the order never changes between versions and machines. Running this file as a
script (`python tests/data/curriculum/test_golden_order.py`) fills in `first_draws` and `hashes` in `golden.json` from
the configs there. The result was checked against a second implementation, which goes through the slots with fractions.
Regenerate it only for an intended change of the order.
"""

import json
from pathlib import Path

import pytest

from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.curriculum.order_hash import order_hash_after

GOLDEN = Path(__file__).with_name("golden.json")
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))


def build(case: dict) -> Curriculum:
    return Curriculum([Stage(**stage) for stage in case["stages"]], case["sizes"], case["rows_per_step"], case["seed"])


def first_draws(curriculum: Curriculum, count: int = 24) -> list[list]:
    slots = curriculum.rows_per_step
    return [list(curriculum.draw(*divmod(index, slots))) for index in range(count)]


def hashes(curriculum: Curriculum) -> dict[str, str]:
    steps = sorted({1, 2, curriculum.total_steps // 2, curriculum.total_steps})
    return {str(step): order_hash_after(curriculum, step) for step in steps}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_data_order_is_what_it_has_always_been(case):
    curriculum = build(case)
    assert first_draws(curriculum) == case["first_draws"]
    assert hashes(curriculum) == case["hashes"]


if __name__ == "__main__":
    for case in CASES:
        case |= {"first_draws": first_draws(build(case)), "hashes": hashes(build(case))}
    blocks = [
        ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in case.items())
        for case in CASES
    ]
    GOLDEN.write_text("[{\n" + "\n}, {\n".join(blocks) + "\n}]\n", encoding="utf-8")
