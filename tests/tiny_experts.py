"""Tiny random models whose layers have experts, one for each way in which files store them."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

from tiny_model import write_tokenizer

EXPERTS, CHOSEN = 4, 2
_SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "num_experts_per_tok": CHOSEN,
    "router_aux_loss_coef": 0.01,
    "bos_token_id": None,
}


def write_tiny_experts(folder: Path, kind: str = "qwen3_moe", **changes: Any) -> Path:
    """Write a 2-layer model of a `kind` with 4 experts of which each token uses 2, and the tiny model's tokenizer.

    `changes` are to its config. The router's weights are large, so that experts are used unevenly.
    """
    tokenizer = write_tokenizer(folder)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(_config(kind, {**_SIZES, **ends, **changes}), dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.endswith((".gate.weight", ".router.weight")):
                torch.nn.init.normal_(parameter, std=0.5)
        model.save_pretrained(folder)
    return folder


def _config(kind: str, sizes: dict[str, Any]) -> PreTrainedConfig:
    if kind == "qwen3_moe":
        return Qwen3MoeConfig(**sizes, moe_intermediate_size=24, num_experts=EXPERTS, head_dim=16)
    if kind == "olmoe":
        return OlmoeConfig(**sizes, num_experts=EXPERTS)
    if kind == "mixtral":
        return MixtralConfig(**sizes, num_local_experts=EXPERTS, head_dim=16)
    return GptOssConfig(**sizes, num_local_experts=EXPERTS, head_dim=16, sliding_window=8)
