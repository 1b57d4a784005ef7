"""The tiny model as vLLM takes it on a CPU: with heads of 32 in place of 16, and favourites among its tokens."""

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
"""Defaults in the model's folder, of which no engine may use any."""


def write_vllm_model(tiny_model: Path, folder: Path) -> Path:
    """A random Llama of 2 layers with tied embeddings, in float32; `tiny_model` gives its tokenizer and sizes."""
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
