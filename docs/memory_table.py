"""Estimates the memory that models of the Qwen2.5 family take in training, for the tables in docs/gpu.md.

python docs/memory_table.py     estimates it again, in some minutes and 12 GiB of memory, and writes memory_table.json
"""

import copy
import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import torch
from transformers import Qwen2Config

from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.models.model_shape import ModelShape, TrainedModel, read_shape
from posttrain.train.cost.batches import Batch
from posttrain.train.cost.estimate import peak_bytes
from posttrain.train.cost.shallow_model import KeptBytes, Probe
from posttrain.train.memory import GIB

FILE = Path(__file__).with_name("memory_table.json")
DEVICES = (8, 16, 24, 48, 80)
TOKENS = 2048
# Left for what is not estimated: CUDA's context, workspaces of kernels, and gaps between tensors.
_USABLE = 0.9
# The rows that pass through the measured layers have no more entries than this.
_ENTRIES = 8192


@dataclass(frozen=True)
class Size:
    """The published shape of a model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    tied: bool = False


SIZES = {
    "0.5B": Size(896, 4864, 24, 14, 2, 151_936, tied=True),
    "1.5B": Size(1536, 8960, 28, 12, 2, 151_936, tied=True),
    "3B": Size(2048, 11_008, 36, 16, 2, 151_936, tied=True),
    "7B": Size(3584, 18_944, 28, 28, 4, 152_064),
    "14B": Size(5120, 13_824, 48, 40, 8, 152_064),
    "32B": Size(5120, 27_648, 64, 40, 8, 152_064),
    "72B": Size(8192, 29_568, 80, 64, 8, 152_064),
}
Quantization = Literal["none", "8bit", "4bit"]
WAYS: dict[str, tuple[Quantization, LoraConfig | None]] = {
    "all weights": ("none", None),
    "LoRA": ("none", LoraConfig()),
    "LoRA on 8 bits": ("8bit", LoraConfig()),
    "LoRA on 4 bits": ("4bit", LoraConfig()),
}
Table = Mapping[str, Mapping[str, tuple[float, float]]]
"""GiB by size and way, with and without gradient checkpointing."""


def estimated(size: Size) -> dict[str, tuple[float, float]]:
    """GiB of each way of training a model, with and without gradient checkpointing, on a CUDA device."""
    kept: dict[bool, KeptBytes | None] = {}
    found = {}
    for way, (quantization, lora) in WAYS.items():
        trained = _trained(size, quantization, lora)
        shape = read_shape(trained)
        is_adapted = lora is not None
        if is_adapted not in kept:
            kept[is_adapted] = _kept(trained, shape) if _least(shape) < DEVICES[-1] or is_adapted else None
        passes = kept[is_adapted]
        if passes is None:  # its layers are not measured, as their weights alone do not fit
            found[way] = (_least(shape), _least(shape))
        else:
            found[way] = (_gib(shape, passes, checkpointing=True), _gib(shape, passes, checkpointing=False))
    return found


def tables(found: Table) -> str:
    """The tables, as Markdown: which device holds which model."""
    parts = []
    for number, title in enumerate(("With `gradient_checkpointing: true`:", "Without:")):
        lines = [title, "", f"| model | {' | '.join(WAYS)} |", f"|---|{'---:|' * len(WAYS)}"]
        for size, ways in found.items():
            lines.append(f"| {size} | {' | '.join(_cell(ways[way][number]) for way in WAYS)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n\n"


def stored() -> Table:
    """The estimates that are kept in the file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def _cell(gib: float) -> str:
    fitting = next((device for device in DEVICES if gib <= _USABLE * device), None)
    return f"{gib:.0f}: none" if fitting is None else f"{gib:.1f}: **{fitting}**"


def _trained(size: Size, quantization: Quantization, lora: LoraConfig | None) -> TrainedModel:
    architecture = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        tie_word_embeddings=size.tied,
    )
    model = ModelConfig(name="qwen2.5", backend="hf", dtype="bfloat16", quantization=quantization)
    return TrainedModel(model, lora, TrainingConfig(compile=False), architecture, (), 0)


def _kept(trained: TrainedModel, shape: ModelShape) -> KeptBytes:
    """What passes keep; a frozen vocabulary keeps nothing, so that a small one is measured in its place."""
    if trained.lora is None:
        return Probe(trained, shape, "cpu").kept_bytes()
    architecture = copy.deepcopy(trained.architecture)
    architecture.vocab_size = _ENTRIES
    small = replace(trained, architecture=architecture)
    return Probe(small, replace(shape, vocabulary=_ENTRIES), "cpu").kept_bytes()


def _least(shape: ModelShape) -> float:
    """GiB of weights, gradients and optimizer states."""
    return (shape.weight_bytes + shape.state_bytes + 4 * shape.everything.trained) / GIB


def _gib(shape: ModelShape, kept: KeptBytes, *, checkpointing: bool) -> float:
    row = Batch(rows=1, width=TOKENS, trained=TOKENS)
    shape = replace(shape, checkpointing=checkpointing)
    return peak_bytes(shape, kept, [[row]], torch.device("cuda")) / GIB


def main() -> None:
    found = {}
    # Each in a process of its own, which gives the memory of its layers back.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for name, ways in zip(SIZES, processes.map(estimated, SIZES.values()), strict=True):
            found[name] = {way: [round(gib, 3) for gib in both] for way, both in ways.items()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
