"""A run can generate with a class of the user's, in the trainer's process or in one of its own."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ConfigError, RunError
from rl.rl_runs import folder_of, require_same_runs, steps_done, train_here, training_rows, write_run
from running import metrics

_EXAMPLE = Path(__file__).parents[3] / "examples" / "own_engine" / "engine.py"


def write(folder: Path, model: Path, code: str | None = None, **rollout: Any) -> Path:
    """A run of 4 steps whose engine is the example, or a class `Engine` with this code."""
    folder.mkdir()
    file = folder / "engine.py"
    if code is None:
        shutil.copy(_EXAMPLE, file)
    else:
        file.write_text(code)
    engine = {"path": f"engine.py:{'PlainEngine' if code is None else 'Engine'}", "options": {"dtype": "float32"}}
    return write_run(
        folder,
        model,
        model={"dtype": "float32"},
        rollout={"engine": engine, **rollout},
        training={"max_steps": 4},
    )


def test_an_engine_of_the_users_samples_with_the_weights_of_the_step(tiny_model: Path, tmp_path: Path) -> None:
    here, child = (write(tmp_path / place, tiny_model, placement=place) for place in ("process", "child"))
    train_here(here)
    train_here(child)
    require_same_runs(here, child, 4)
    # The learning rate is large, so another step's weights would differ far more.
    rows = training_rows(metrics(folder_of(here)))
    assert [row["sampling/logprob_difference"] < 1e-5 for row in rows] == [True] * 4

    (here.parent / "engine.py").write_text(_EXAMPLE.read_text() + "# changed\n")
    with pytest.raises(ConfigError, match=r"rollout\.engine\.path: .* → "):
        train_here(here, ("training.max_steps=6",), resume=True)


def test_it_can_generate_ahead(tiny_model: Path, tmp_path: Path) -> None:
    config = write(tmp_path / "ahead", tiny_model, staleness=1)
    train_here(config)
    rows = training_rows(metrics(folder_of(config)))
    assert [row.get("async/age_max", 0.0) for row in rows] == [0.0, 1.0, 1.0, 1.0]


def test_one_that_keeps_its_first_weights_trains_nothing_after_the_first_step(tiny_model: Path, tmp_path: Path) -> None:
    stale = (
        _EXAMPLE.read_text()
        .replace("class PlainEngine", "class Engine")
        .replace(
            "    def load(",
            "    def load(self, weights, version):\n        if version == 0:\n            self._load(weights, 0)\n\n"
            "    def _load(",
        )
    )
    config = write(tmp_path / "stale", tiny_model, stale)
    with pytest.raises(RunError, match="did not take over the weights after optimizer step 1"):
        train_here(config)
    assert steps_done(config) == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = 1", r"rollout\.engine: .*engine\.py has no class Engine"),
        ("class Engine:\n    def load(self): ...", r"rollout\.engine: .*lacks complete, score, close"),
    ],
)
def test_a_file_without_an_engine_is_refused_before_a_model_is_loaded(code: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        train_here(write(tmp_path / "own", tmp_path / "no-model", code))


def test_an_error_of_the_users_code_ends_the_run_by_name(tiny_model: Path, tmp_path: Path) -> None:
    broken = (
        _EXAMPLE.read_text()
        .replace("class PlainEngine", "class Engine")
        .replace('"""log p of ids[1:] at temperature 1."""', "return [0.5]")
    )
    config = write(tmp_path / "broken", tiny_model, broken)
    with pytest.raises(RunError, match=r"engine\.py:Engine: score must return"):
        train_here(config)


@pytest.mark.parametrize("placement", ["process", "child"])
def test_an_error_of_the_users_code_after_some_steps_leaves_a_checkpoint_of_them(
    tiny_model: Path, tmp_path: Path, placement: str
) -> None:
    broken = (
        _EXAMPLE.read_text()
        .replace("class PlainEngine", "class Engine")
        .replace(
            "    def load(",
            "    def load(self, weights, version):\n        if version == 2:\n            raise OSError('no room')\n"
            "        self._load(weights, version)\n\n    def _load(",
        )
    )
    config = write(tmp_path / "broken", tiny_model, broken, placement=placement)
    with pytest.raises(RunError, match=r"after step 2, which is saved.*engine\.py:Engine: load failed: OSError: no ro"):
        train_here(config)
    assert (folder_of(config) / "checkpoint-2").is_dir()
