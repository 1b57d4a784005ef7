"""Merging needs memory for only a few tensors, whatever the size of the model."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from merge_cases import save_tokenizer
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import LlamaConfig

# A billion parameters: 22 layers of 44 million, and an embedding and a head of 33 million each.
SHAPE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "vocab_size": 16000}
LAYERS_PER_FILE = 3
LINEAR = {
    "self_attn.q_proj": (2048, 2048),
    "self_attn.k_proj": (256, 2048),
    "self_attn.v_proj": (256, 2048),
    "self_attn.o_proj": (2048, 2048),
    "mlp.gate_proj": (5632, 2048),
    "mlp.up_proj": (5632, 2048),
    "mlp.down_proj": (2048, 5632),
}


def write_model(folder: Path) -> list[int]:
    """Write the model's files one by one, and return their sizes in bytes."""
    config = LlamaConfig(num_attention_heads=32, num_key_value_heads=4, dtype="bfloat16", **SHAPE)
    config.save_pretrained(folder)
    save_tokenizer(folder)
    shards = [range(22)[first : first + LAYERS_PER_FILE] for first in range(0, 22, LAYERS_PER_FILE)]
    weight_map: dict[str, str] = {}
    for number, layers in enumerate(shards, start=1):
        tensors = {name: tensor for layer in layers for name, tensor in layer_tensors(layer).items()}
        if number == 1:
            tensors["model.embed_tokens.weight"] = random(16000, 2048)
        if number == len(shards):
            tensors |= {"lm_head.weight": random(16000, 2048), "model.norm.weight": random(2048)}
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [file.stat().st_size for file in folder.glob("*.safetensors")]


def layer_tensors(layer: int) -> dict[str, torch.Tensor]:
    names = {f"model.layers.{layer}.{name}.weight": random(*shape) for name, shape in LINEAR.items()}
    norms = ("input_layernorm", "post_attention_layernorm")
    return names | {f"model.layers.{layer}.{name}.weight": random(2048) for name in norms}


def random(*shape: int) -> torch.Tensor:
    # The same values for the same shape: generating new ones would take longer than merging them.
    return _random(shape).clone()


@cache
def _random(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16).uniform_(-0.1, 0.1)


def write_adapter(folder: Path) -> None:
    """A LoRA of rank 8 on every linear layer."""
    folder.mkdir()
    LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=[name.split(".")[1] for name in LINEAR]).save_pretrained(
        str(folder)
    )
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(22):
        for name, (rows, columns) in LINEAR.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = 0.1 * torch.randn(8, columns)
            tensors[f"{prefix}.lora_B.weight"] = 0.1 * torch.randn(rows, 8)
    save_file(tensors, folder / "adapter_model.safetensors")


@pytest.mark.long
def test_a_model_of_a_billion_parameters_is_merged_in_less_memory_than_one_of_its_files(tmp_path: Path):
    sizes = write_model(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    # A separate process has its own peak memory; it is counted from the floor after the imports.
    program = Path(__file__).with_name("peak_memory.py")
    run = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, check=True)
    measured = json.loads(run.stdout.splitlines()[-1])
    assert sum(sizes) > 2e9
    assert max(sizes) < 3.4e8
    assert measured["above_floor"] < max(sizes), measured
