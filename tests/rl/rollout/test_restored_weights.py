"""An engine that makes a generation again after a resume is checked like any other."""

from pathlib import Path

import pytest

from posttrain.config.load import load_config
from posttrain.errors import DataError
from posttrain.inference.loaded import write_trained
from posttrain.rl.config import RLConfig
from posttrain.rl.rollout.engines.probe import Expected, SyncProbe
from posttrain.rl.rollout.store import pending
from posttrain.train.recipe import UnavailableError
from rl.rl_recipes import WrittenServer, a_recipe, load, move_adapter
from rl.rl_runs import write_run

ROOM = 200


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Path:
    rollout = {"staleness": 1, "threads": 1, "max_prompt_tokens": ROOM}
    (tmp_path / "run" / "runs").mkdir(parents=True)  # for the engine's log
    return write_run(tmp_path / "run", tiny_model, rollout=rollout, evaluation=None)


def a_checkpoint(folder: Path, config: Path, *, is_moved_after_scoring: bool = False) -> Path:
    """A checkpoint after step 1 with generation 1, which must be made again by the weights after step 0."""
    loaded = load(load_config(config, RLConfig, ["model.dtype=float32"]))
    move_adapter(loaded.model)
    expected = SyncProbe(loaded, ROOM).expected()
    if is_moved_after_scoring:
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.data *= -1
    weights = folder / "weights"
    weights.mkdir(parents=True)
    write_trained(loaded.model, weights)
    pending.write(folder, 1, pending.Stored(0, None, is_graded=False, weights=weights, expected=expected))
    return folder


def test_stored_weights_that_arrive_pass(tmp_path: Path, config: Path) -> None:
    checkpoint = a_checkpoint(tmp_path / "sound", config)
    recipe = a_recipe(config, WrittenServer([0.0, 1.0] * 4), checkpoint=checkpoint)
    recipe.batch(1)
    assert recipe.generation is not None
    assert {int(version) for each in recipe.generation.rollouts for version in each.versions} == {0}


def test_other_weights_than_those_that_were_stored_stop_the_run(tmp_path: Path, config: Path) -> None:
    checkpoint = a_checkpoint(tmp_path / "other", config, is_moved_after_scoring=True)
    recipe = a_recipe(config, WrittenServer([0.0, 1.0] * 4), checkpoint=checkpoint)
    with pytest.raises(UnavailableError, match="other log-probabilities than the model after optimizer step 0"):
        recipe.batch(1)


def test_expected_scores_are_read_as_they_were_written(tmp_path: Path, config: Path) -> None:
    checkpoint = a_checkpoint(tmp_path / "sound", config)
    loaded = load(load_config(config, RLConfig, ["model.dtype=float32"]))
    move_adapter(loaded.model)
    told, read = SyncProbe(loaded, ROOM).expected(), pending.read(checkpoint, 1).expected
    assert read is not None
    assert (read.logprobs.tobytes(), read.next.tobytes()) == (told.logprobs.tobytes(), told.next.tobytes())

    (file,) = (checkpoint / "rollouts").glob("probe-*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="is missing or damaged"):
        Expected.read(file)
