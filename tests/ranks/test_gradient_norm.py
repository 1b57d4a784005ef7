"""A step's gradient norm does not depend on how the step is split over processes and micro-batches."""

from pathlib import Path
from typing import Any

import pytest

from ranks.rank_runs import alone, folder_of, run, steps_of, write_sft


@pytest.fixture(scope="module")
def single_pass(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Any]:
    """The metrics of a step whose eight rows go through the model together in one process."""
    return trained(tmp_path_factory.mktemp("single"), tiny_model, processes=1, micro_batches=1)


def trained(folder: Path, model: Path, *, processes: int, micro_batches: int) -> dict[str, Any]:
    """The metrics line of one step with its gradient clipped to 0.001."""
    training = {"rows_per_step": 8, "micro_batch_size": 8 // processes // micro_batches, "max_grad_norm": 1e-3}
    sections: dict[str, Any] = {
        "model": {"name": str(model), "dtype": "float32"},
        "lora": {"r": 4},
        "stages": [{"name": "one", "until_step": 1, "mix": {"a": 1}}],
    }
    config = write_sft(folder, model, **sections, training=training)
    if processes == 1:
        alone("toolkit-sft", config)
    else:
        run("toolkit-sft", config, processes=processes)
    (step,) = steps_of(folder_of(config))
    return step


@pytest.mark.parametrize(("processes", "micro_batches"), [(1, 4), (2, 1), (2, 4)])
def test_it_is_that_of_one_pass_by_one_process_before_it_is_clipped(
    tmp_path: Path, tiny_model: Path, single_pass: dict[str, Any], processes: int, micro_batches: int
) -> None:
    step = trained(tmp_path, tiny_model, processes=processes, micro_batches=micro_batches)
    assert single_pass["grad_norm"] > 0.1
    assert step["grad_norm"] == pytest.approx(single_pass["grad_norm"], rel=1e-5)
    assert step["loss"] == pytest.approx(single_pass["loss"], rel=1e-5)
