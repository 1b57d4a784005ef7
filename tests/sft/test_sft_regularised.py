"""Label smoothing and noise in the embeddings change what is trained, and neither validation nor a resumed run."""

import shutil

import pytest

from posttrain.config.load import load_config
from posttrain.errors import ConfigError
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train
from running import metrics

SIZES = {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2, "batching": "by_length"}
VALIDATION = {"dataset": {"path": "held_out.jsonl"}, "every": 2, "at_start": True}


@pytest.mark.parametrize("added", [{"label_smoothing": 0.3}, {"neftune_alpha": 5.0}], ids=lambda each: next(iter(each)))
def test_only_what_is_trained_changes_and_a_resumed_run_is_the_same(write_config, tmp_path, added):
    first = []
    for name, training in (("plain", SIZES), ("run", {**SIZES, **added})):
        train(load_config(write_config(name, training=training, validation=VALIDATION), SFTConfig), name)
        first.append(metrics(tmp_path / "runs" / name)[:2])
    (before, plain), (also_before, changed) = first
    assert before["eval_loss"] == pytest.approx(also_before["eval_loss"], abs=1e-6)
    assert abs(plain["loss"] - changed["loss"]) > 1e-4

    folder = tmp_path / "runs" / "run"
    whole = metrics(folder), (folder / "adapter_model.safetensors").read_bytes()
    for newer in ("checkpoint-6", "checkpoint-8"):
        shutil.rmtree(folder / newer)
    (folder / "result.json").unlink()
    config = load_config(tmp_path / "run.yaml", SFTConfig)
    train(config, "run", resume=True)
    assert (metrics(folder), (folder / "adapter_model.safetensors").read_bytes()) == whole


def test_noise_needs_padded_rows(write_config):
    config = write_config(training={"neftune_alpha": 5})
    assert load_config(config, SFTConfig).training.padding_free is False
    with pytest.raises(ConfigError, match=r"neftune_alpha: .* set batching: by_length"):
        load_config(config, SFTConfig, ["training.batching=padding_free"])
