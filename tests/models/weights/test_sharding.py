"""What the processes that share a model write together is what one process writes, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from posttrain.errors import ModelError
from posttrain.inference.loaded import write_trained
from posttrain.models.weights.checkpoint import save_adapter
from posttrain.models.weights.merged import write_merged_weights
from posttrain.models.weights.sharding import copy_whole, require_unscaled, shard, whole
from ranks.connected_ranks import on_ranks

ADAPTERS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "DoRA": {"use_dora": True},
    "modules to save": {"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
    "two matrices": {"modules_to_save": ["embed_tokens", "lm_head"]},
}
WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "merged": lambda model, folder: write_merged_weights(model, folder, torch.float32),
    "adapter": lambda model, folder: save_adapter(model, folder, save_embedding_layers=False),
    "trained": write_trained,
}


def adapted(model: Path, kind: str) -> Any:
    """The model with an adapter that changes it."""
    torch.manual_seed(0)
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if kind == "two matrices":
        base.config.tie_word_embeddings = False
        base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().flip(0).clone())
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], **ADAPTERS[kind])
    found: Any = get_peft_model(base, config)
    for name, weight in found.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return found


def write_all(model: Any, folder: Path) -> None:
    for name, write in WRITERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        write(model, folder / name)


def write_shared(model: Path, kind: str, folder: Path) -> None:
    """Write the shared model; only the main process's files are there."""
    shared = adapted(model, kind)
    shard(shared, torch.device("cpu"))
    write_all(shared, folder)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_files_are_those_of_one_process(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    write_all(adapted(tiny_model, kind), tmp_path / "one")
    on_ranks(write_shared, tmp_path, tiny_model, kind, tmp_path / "two", ranks=3)
    for file in (tmp_path / "one").rglob("*.safetensors"):
        weights, others = (load_file(each) for each in (file, tmp_path / "two" / file.relative_to(tmp_path / "one")))
        assert weights.keys() == others.keys()
        assert all(torch.equal(others[name], each) for name, each in weights.items())


def test_what_needs_a_scaled_loss_is_refused() -> None:
    require_unscaled(torch.bfloat16)
    with pytest.raises(ModelError, match="float16"):
        require_unscaled(torch.float16)


def cut_and_whole() -> list[tuple[list[int], bool]]:
    """For matrices of 5 rows and 1, in two processes: the shape of this one's share, and whether the whole is right."""
    found = []
    for rows in (5, 1):
        layer: Any = torch.nn.Linear(3, rows, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(rows * 3.0).view(rows, 3))
        expected = layer.weight.detach().clone()
        shard(layer, torch.device("cpu"))
        local = list(layer.weight.to_local().shape)
        copy_whole(2 * expected, layer.weight)
        found.append((local, bool(torch.equal(whole(layer.weight), 2 * expected))))
    return found


def test_rows_are_dealt_out_as_evenly_as_they_come(tmp_path: Path) -> None:
    first, second = on_ranks(cut_and_whole, tmp_path)
    assert first == [([3, 3], True), ([1, 3], True)]
    assert second == [([2, 3], True), ([0, 3], True)]
