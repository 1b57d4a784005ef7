"""Fold a LoRA adapter into its base model, one tensor at a time.

At no time is a model in memory: the output is planned on the meta device (`outline`, `plan`), and every tensor
is then read, merged and written on its own (`shards`, `delta`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.merge.adapter import open_adapter
from posttrain.merge.base import base_folder
from posttrain.merge.companions import write_generation_config, write_model_config, write_tokenizer
from posttrain.merge.memory import return_freed_memory
from posttrain.merge.outline import Outline, adapter_outline
from posttrain.merge.output import check_output, new_folder
from posttrain.merge.plan import Plan, plan_tensors
from posttrain.merge.shards import checkpoint_tensors, write_index, write_shard
from posttrain.models.hf import HfBackend

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""What weights can be stored as, and how safetensors calls it."""

Progress = Callable[[int, int], None]
"""Called after each tensor with how many are written and how many there are."""


@dataclass(frozen=True)
class MergeReport:
    """What was written: `merged` of the `tensors` are not the base's own; `tied` is of embedding and head."""

    output: Path
    tensors: int
    merged: int
    files: int
    size_bytes: int
    new_tokens: int
    tied: bool


def merge_adapter(
    base: ModelConfig,
    adapter: Path,
    output: Path,
    *,
    chat: ChatConfig,
    dtype: str | None = None,
    overwrite: bool = False,
    progress: Progress = lambda written, of: None,
) -> MergeReport:
    """Write the model that `base` is under `adapter` to the folder `output`.

    Args:
        dtype: float32, bfloat16 or float16 for all weights; None keeps each tensor's own.

    Raises:
        ConfigError: `output` cannot be written to.
        ModelError: base and adapter do not fit together, or are of a kind that cannot be merged.
    """
    folder = base_folder(base)
    check_output(output, overwrite=overwrite, inputs=(folder, adapter))
    opened = open_adapter(adapter)
    local = base.model_copy(update={"name": str(folder), "revision": None})
    tokenizer, new_ids = HfBackend().tokenizer_with_new_ids(local, chatml=chat.template == "chatml")
    outline = adapter_outline(
        AutoConfig.from_pretrained(folder, trust_remote_code=base.trust_remote_code),
        opened.config,
        new_ids,
        {name: tensor.shape for name, tensor in opened.tensors.items()},
        trust_remote_code=base.trust_remote_code,
    )
    plan = plan_tensors(checkpoint_tensors(folder), outline, opened, new_ids, DTYPES[dtype] if dtype else None)
    with new_folder(output) as aside:
        _write_weights(aside, plan, progress)
        rows = outline.shapes[outline.embedding][0]
        write_model_config(folder, aside, rows=rows, dtype=dtype, tied=outline.stays_tied)
        write_generation_config(folder, aside, tokenizer, chat)
        write_tokenizer(folder, aside, tokenizer, chat)
    return _report(output, plan, outline, len(new_ids))


def _write_weights(folder: Path, plan: Plan, progress: Progress) -> None:
    total = sum(len(tensors) for tensors in plan.values())
    written = 0

    def count() -> None:
        nonlocal written
        written += 1
        return_freed_memory()
        progress(written, total)

    for file, tensors in plan.items():
        write_shard(folder / file, tensors, count)
    write_index(folder, plan)


def _report(output: Path, plan: Plan, outline: Outline, new_tokens: int) -> MergeReport:
    tensors = [tensor for shard in plan.values() for tensor in shard]
    return MergeReport(
        output=output,
        tensors=len(tensors),
        merged=sum(tensor.merged for tensor in tensors),
        files=len(plan),
        size_bytes=sum(tensor.nbytes for tensor in tensors),
        new_tokens=new_tokens,
        tied=outline.stays_tied,
    )
