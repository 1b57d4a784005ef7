"""The engine of one of two processes fails: both end with a checkpoint and the reason, and go on as if left alone."""

from pathlib import Path
from typing import Any

import pytest

from rl.rl_runs import folder_of, lines, run, said, write_run
from running import metrics

pytestmark = pytest.mark.long

_EXAMPLE = Path(__file__).parents[2] / "examples" / "own_engine" / "engine.py"
_SUBSTITUTES = {"filters": [{"kind": "mean_reward", "max": 0.5}], "rejected": "substitute", "over_sampling": 1.5}

# As long as there is a file `broken` beside it, the engine of the second process fails with the weights of step 2.
_FAILING = """
class Engine(PlainEngine):
    _place = Path(__file__).with_name("broken")

    def load(self, weights, version):
        super().load(weights, version)
        self._fails = "rank-1" in str(weights) and version == 2 and self._place.exists()
        if self._fails and self._place.read_text() == "load":
            raise OSError("no room")

    def complete(self, requests, sampling):
        if self._fails:
            raise OSError("no room")
        return super().complete(requests, sampling)
"""


def write(folder: Path, model: Path, staleness: int) -> Path:
    folder.mkdir()
    (folder / "engine.py").write_text(_EXAMPLE.read_text() + _FAILING)
    engine = {"path": "engine.py:Engine", "options": {"dtype": "float32"}}
    changes: dict[str, Any] = {
        "model": {"dtype": "float32"},
        "rollout": {**_SUBSTITUTES, "engine": engine, "staleness": staleness, "threads": 1},
        "training": {"micro_batch_size": 2, "max_steps": 5},
        "evaluation": None,
    }
    return write_run(folder, model, **changes)


@pytest.mark.parametrize("staleness", [0, 2])
def test_both_processes_end_for_the_reason_of_one(staleness: int, tiny_model: Path, tmp_path: Path) -> None:
    whole, broken = (write(tmp_path / name, tiny_model, staleness) for name in ("whole", "broken"))
    run(whole, processes=2)
    place = broken.with_name("broken")
    for launches, method in enumerate(("load", "complete"), start=1):
        place.write_text(method)
        resume = ["--resume"] if folder_of(broken).exists() else []
        run(broken, *resume, processes=2, expect=1)
        told = f"engine.py:Engine: {method} failed: OSError: no room"
        assert f"--resume continues from it: {broken.parent}/{told}" in said(broken)
        assert f"--resume continues from it: process 1: {broken.parent}/{told}" in said(broken)
        assert said(broken).count("Traceback") == launches  # torchrun's own
    place.unlink()
    run(broken, "--resume", processes=2)
    assert metrics(folder_of(whole)) == metrics(folder_of(broken))
    assert lines(folder_of(whole) / "completions.jsonl") == lines(folder_of(broken) / "completions.jsonl")
