"""The samples of known configs, as the first version of this package drew them.

A run must resume identically with another version or on another machine. Running this file generates
`sampling_golden.json`; regenerate it only for an intended change of the samples.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dataserver.dataserver_cases import make_config, questions, write_rows
from posttrain.dataserver.data.loading import load_datasets
from posttrain.dataserver.data.samples import Samples
from posttrain.dataserver.data.sampling import Sampler, split_rows

GOLDEN = Path(__file__).with_name("sampling_golden.json")
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))

_TELL = """
import json, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from test_sampling_golden import CASES, golden_answers
print(json.dumps([golden_answers(case, Path(sys.argv[3])) for case in CASES]))
"""


def golden_answers(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The sample ids of some iterations and of the validation split."""
    for name, section in case["datasets"].items():
        write_rows(folder / f"{name}.jsonl", questions(name, section["rows"]))
    sections = {
        name: {"validation_fraction": section["validation_fraction"]} for name, section in case["datasets"].items()
    }
    config = make_config(folder, sections, **case["config"])
    datasets = load_datasets(config, lambda line: None)
    sides = split_rows(config, datasets)
    one, samples = Sampler(config, sides), Samples(config, datasets, sides)
    size = config.prompts_per_iteration
    train = {
        str(iteration): [samples.sample(slot).sample_id for slot in one.slots(iteration, 0, size, "train")]
        for iteration in case["iterations"]
    }
    held_out = one.slots(0, 0, one.validation_size, "validation") if one.validation_size else []
    return {"train": train, "validation": [samples.sample(slot).sample_id for slot in held_out]}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_samples_are_what_they_have_always_been(case: dict[str, Any], tmp_path: Path) -> None:
    assert golden_answers(case, tmp_path) == case["answers"]


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_samples_do_not_depend_on_the_process(hash_seed: str, tmp_path: Path) -> None:
    here = Path(__file__).parent
    finished = subprocess.run(
        [sys.executable, "-c", _TELL, here, here.parents[1], tmp_path],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(finished.stdout.splitlines()[-1]) == [case["answers"] for case in CASES]


if __name__ == "__main__":
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            case["answers"] = golden_answers(case, Path(folder))
    blocks = [",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in case.items()) for case in CASES]
    GOLDEN.write_text("[{\n" + "\n}, {\n".join(blocks) + "\n}]\n", encoding="utf-8")
