"""The tiny model in a form that vLLM supports on a CPU: head size 32 instead of 16, and sharper weights."""

import json
import shutil
from pathlib import Path

from sharp_model import write_sharp_model

MISLEADING = {
    "do_sample": True,
    "temperature": 5.0,
    "top_k": 2,
    "repetition_penalty": 9.0,
    "max_new_tokens": 1,
    "eos_token_id": list(range(3, 383)),
}
"""Defaults in the model's folder that no engine may use."""


def write_vllm_model(tiny_model: Path, folder: Path) -> Path:
    """A random 2-layer Llama with tied embeddings, in float32; its tokenizer and other sizes are from `tiny_model`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    plain = folder / "plain"
    shutil.copytree(tiny_model, plain)
    config = LlamaConfig.from_pretrained(tiny_model, num_attention_heads=2, num_key_value_heads=2, head_dim=32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).float().save_pretrained(plain)
    sharp = write_sharp_model(plain, folder / "sharp")
    (sharp / "generation_config.json").write_text(json.dumps(MISLEADING), encoding="utf-8")
    return sharp
