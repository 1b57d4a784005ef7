"""Pickled weights of models and adapters are not loaded."""

import io
import json
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from pickle_traps import KINDS, torch_pickle

from cli.refusals import the_one_error
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ModelError
from posttrain.models.hf import HfBackend
from posttrain.models.location import locate_model
from running import BIN
from sft.small_sft import write_sft_run

if TYPE_CHECKING:
    from collections.abc import Callable

ADVICE = "convert them with the command in docs/security.md, or use a model that has safetensors"


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """The file that a trap creates."""
    return tmp_path / "sprung"


@pytest.fixture
def pickled(tmp_path: Path, tiny_model: Path) -> Path:
    """A model folder without weights."""
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_trap_works_where_pickles_are_read(kind: str, sprung: Path) -> None:
    file = io.BytesIO(KINDS[kind](sprung))
    read: dict[str, Callable[[], object]] = {
        "plain": lambda: pickle.load(file),
        "torch": lambda: torch.load(file, weights_only=False),
        "old torch": lambda: torch.load(file, weights_only=False),
        "array": lambda: np.load(file, allow_pickle=True),
    }
    read[kind]()

    assert sprung.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
def test_a_model_whose_weights_are_pickled_is_refused_before_anything_is_read(
    pickled: Path, sprung: Path, name: str
) -> None:
    (pickled / name).write_bytes(torch_pickle(sprung))

    with pytest.raises(ModelError) as caught:
        locate_model(str(pickled), "models.1")

    assert str(caught.value) == (
        f"models.1.name: {pickled / name} is a pickle, which may run code when it is read, and there are no "
        f"safetensors weights beside it; {ADVICE}"
    )
    assert not sprung.exists()


@pytest.mark.parametrize("kind", ["plain", "torch", "old torch"])
def test_a_shard_that_an_index_names_is_not_unpickled(pickled: Path, sprung: Path, kind: str) -> None:
    """A safetensors index may name a file of another kind."""
    (pickled / "shard.bin").write_bytes(KINDS[kind](sprung))
    (pickled / "other.safetensors").write_bytes(b"")
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "shard.bin"}}
    (pickled / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(ModelError, match=r"model\.name: cannot load"):
        HfBackend().load_for_inference(ModelConfig(name=str(pickled)), None, chatml=True)

    assert not sprung.exists()


def test_a_pickle_beside_safetensors_is_left_alone(tmp_path: Path, tiny_model: Path, sprung: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(tiny_model, folder)
    for name in ("pytorch_model.bin", "model.pt", "optimizer.pt", "training_args.bin", "tokenizer.pkl", "x.joblib"):
        (folder / name).write_bytes(torch_pickle(sprung))

    loaded = HfBackend().load_for_inference(ModelConfig(name=str(folder)), None, chatml=True)

    assert sum(1 for _ in loaded.model.parameters()) > 0
    assert not sprung.exists()


@pytest.mark.parametrize("kind", ["plain", "torch", "old torch"])
def test_an_adapter_whose_weights_are_pickled_is_refused(
    tmp_path: Path, tiny_model: Path, sprung: Path, kind: str
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter" / "adapter_model.bin").write_bytes(KINDS[kind](sprung))

    with pytest.raises(ModelError, match=r"adapter_model\.bin is a pickle, .* no safetensors weights beside it"):
        HfBackend().load_for_inference(ModelConfig(name=str(tiny_model)), tmp_path / "adapter", chatml=True)

    assert not sprung.exists()


@pytest.mark.parametrize("kind", ["plain", "torch"])
def test_a_gguf_file_that_is_a_pickle_is_refused(tmp_path: Path, sprung: Path, kind: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(KINDS[kind](sprung))

    with pytest.raises(ModelError, match=r"cannot read .*model\.gguf"):
        HfBackend().load_for_inference(ModelConfig(name=str(file)), None, chatml=True)

    assert not sprung.exists()


@pytest.mark.parametrize(
    "command", [["toolkit-sft", "sft.yaml"], ["toolkit-sft", "sft.yaml", "--dry-run"]], ids=["train", "plan"]
)
def test_a_command_says_in_one_line_what_is_wrong_and_what_to_do(
    tmp_path: Path, pickled: Path, sprung: Path, command: list[str]
) -> None:
    (pickled / "pytorch_model.bin").write_bytes(torch_pickle(sprung))
    write_sft_run(tmp_path, pickled)

    ended = subprocess.run([BIN / command[0], *command[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert ended.returncode == 2
    message = the_one_error(ended.stderr, ended.stdout)
    assert message.startswith("model.name: ") and message.endswith(ADVICE)
    assert not sprung.exists()
    assert not (tmp_path / "runs" / "sft" / "config.yaml").exists()
