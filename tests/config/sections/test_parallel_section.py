"""What does not go together with `parallel.kind: fsdp2` is refused by name, before anything is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.load import load_config
from posttrain.config.strict import StrictModel
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from posttrain.sft.config import SFTConfig

DATA: dict[str, Any] = {
    "datasets": {"a": {"path": "rows.jsonl"}},
    "stages": [{"name": "one", "until_step": 2, "mix": {"a": 1}}],
}
EVALUATION = {"tasks": "eval.yaml"}
CHILD = {"placement": "child"}


def written(folder: Path, sections: Mapping[str, Any]) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({"model": {"name": "a"}, "parallel": {"kind": "fsdp2"}, **sections}))
    return path


@pytest.mark.parametrize(
    ("kind", "sections", "told"),
    [
        (SFTConfig, {"model": {"name": "a", "backend": "unsloth"}}, "model.backend: unsloth"),
        (SFTConfig, {"model": {"name": "a", "quantization": "4bit"}}, "model.quantization: 4bit"),
        (SFTConfig, {"lora": {"init": "pissa"}}, "lora.init: pissa"),
        (SFTConfig, {"training": {"compile": True}}, "training.compile: true"),
        (SFTConfig, {"training": {"offload_activations": True}}, "training.offload_activations: true"),
        (SFTConfig, {"training": {"offload_embeddings": True}}, "training.offload_embeddings: true"),
        (SFTConfig, {"training": {"optimizer": "muon"}}, "training.optimizer: muon"),
        (SFTConfig, {"training": {"optimizer": "adamw_8bit"}}, "training.optimizer: adamw_8bit"),
        (SFTConfig, {"evaluation": EVALUATION}, "evaluation, which asks the model for answers"),
        (DPOConfig, {"evaluation": EVALUATION}, "evaluation, which asks the model for answers"),
        (DPOConfig, {"lora": None, "reference": {"type": "live"}}, "reference.type: live without a new adapter"),
        (RLConfig, {}, "set rollout.placement: child"),
        (RLConfig, {"rollout": CHILD, "lora": None, "objective": {"beta": 0.1}}, "objective.beta: 0.1 without"),
    ],
)
def test_refused(kind: type[StrictModel], sections: dict[str, Any], told: str, tmp_path: Path) -> None:
    given = {"dataserver": {"url": "http://127.0.0.1:1"}} if kind is RLConfig else DATA
    path = written(tmp_path, {**given, **sections})
    with pytest.raises(ConfigError, match=f"parallel: kind: fsdp2 does not go together with .*{told}"):
        load_config(path, kind)
    load_config(written(tmp_path, {**given, **sections, "parallel": {"kind": "ddp"}}), kind)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "schedule_free_adamw", {"class": "torch.optim.Adagrad"}])
def test_allowed(optimizer: Any, tmp_path: Path) -> None:
    load_config(written(tmp_path, {**DATA, "training": {"optimizer": optimizer, "schedule": "constant"}}), SFTConfig)


def test_a_new_adapter_needs_no_copy_of_what_is_trained(tmp_path: Path) -> None:
    load_config(written(tmp_path, {**DATA, "reference": {"type": "live"}}), DPOConfig)
    served = {"dataserver": {"url": "http://127.0.0.1:1"}, "rollout": CHILD, "objective": {"beta": 0.1}}
    load_config(written(tmp_path, served), RLConfig)
