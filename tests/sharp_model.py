"""The tiny model with larger weights, so that it clearly prefers some tokens, depending on the prompt."""

import shutil
from pathlib import Path
from typing import Any


def write_sharp_model(tiny_model: Path, folder: Path) -> Path:
    """Copy the model folder `tiny_model` with every matrix multiplied by 20."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_model, folder)
    file = folder / "model.safetensors"
    tensors = {name: 20 * tensor if tensor.dim() > 1 else tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return folder


def write_adapter(model: Path, folder: Path, seed: int = 1) -> Path:
    """Write a LoRA adapter for `model` that changes its output."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False)
        adapted: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype="float32"), config)
    adapted.save_pretrained(str(folder))
    return folder
