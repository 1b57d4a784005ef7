"""`toolkit-merge`: fold a LoRA adapter into its base model, one tensor at a time.

The model is never in memory as a whole: the output is planned on the meta device (`adapter`, `plan`), and every tensor
is then read, merged and written on its own (`shards`).
"""

import ctypes
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig

from posttrain.base.console import Counting, console
from posttrain.base.locks import own_output, require_unowned
from posttrain.base.text import counted, first_line
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError, ModelError
from posttrain.merge.adapter import CONFIG_FILE, Outline, adapter_outline, open_adapter
from posttrain.merge.output import (
    check_output,
    new_folder,
    write_generation_config,
    write_model_config,
    write_tokenizer,
)
from posttrain.merge.plan import Plan, plan_tensors
from posttrain.merge.verify import Verification, verify_merge
from posttrain.models.hf import HfBackend, model_files
from posttrain.models.weights.tensor_files import FLOATS, checkpoint_tensors, write_index, write_shard
from posttrain.runs.checkpoints import complete_checkpoints, find_checkpoint
from posttrain.runs.trained_run import TrainedRun, load_trained_run

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""The dtypes in which weights can be stored, with their names in safetensors."""

OnTensor = Callable[[int, int], None]
"""Called after each tensor with the number of tensors written and their total."""

# The files of a base model that are downloaded from the hub.
_NEEDED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.py", "LICENSE*", "NOTICE*"]


@dataclass(frozen=True)
class MergeReport:
    """What was written: `merged` of the `tensors` are not the base's own; `tied` refers to embedding and head.

    `verification` is the comparison with the adapter; None if it was skipped.
    """

    output: Path
    tensors: int
    merged: int
    files: int
    size_bytes: int
    new_tokens: int
    tied: bool
    verification: Verification | None = None


def merge(  # noqa: PLR0913 - one parameter for each option of the command
    config_path: Path,
    *,
    checkpoint: str | None = None,
    output: Path | None = None,
    dtype: str | None = None,
    verify: bool = True,
    overwrite: bool = False,
    run_name: str | None = None,
    model_index: int | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
) -> MergeReport | None:
    """Merge the adapter of the run that `config_path` describes.

    Args:
        checkpoint: a step, or `latest`; None takes what the run exported at its end.
        output: by default `merged` in the run's folder, or `merged-checkpoint-N` for a checkpoint.
        dtype: float32, bfloat16 or float16; None keeps the base's.
        model_index: the model to merge, if the config has several.
        overrides: `--set` options, which may change where the run is.
        dry_run: check, print what would be done, and return None.

    Raises:
        ConfigError: there is no such run, checkpoint or dtype, there is nothing to merge, or `output` is taken or being
            written by another process.
        ModelError: the adapter does not fit the base.
        RunError: `output` cannot be written; or the merged model does not compute what the adapter does, in which case
            it is kept for inspection.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}, or omit it to keep the base's dtype")
    run = load_trained_run(config_path, run_name, overrides, model_index)
    adapter = _adapter_folder(run, checkpoint)
    default = "merged" if adapter == run.directory.path else f"merged-{adapter.name}"
    target = output or run.directory.path / default
    if dry_run:
        require_unowned(target)
        check_output(target, overwrite=overwrite, inputs=(adapter,))
        console.print(f"would merge {adapter} into {run.model.name} and write {target}; nothing was merged (--dry-run)")
        return None
    with own_output(target):
        with Counting("merging", "tensors") as progress:
            report = merge_adapter(
                run.model, adapter, target, chat=run.chat, dtype=dtype, overwrite=overwrite, progress=progress.reach
            )
        console.print(_summary(report), markup=False)
        if not verify:
            return report
        verification = verify_merge(run.model, adapter, target, chat=run.chat, weights_dtype=_coarsest_dtype(target))
        console.print(f"compared with the adapter: {verification}", markup=False)
        return replace(report, verification=verification)


def _adapter_folder(run: TrainedRun, checkpoint: str | None) -> Path:
    root = run.directory.path
    folder = root if checkpoint is None else find_checkpoint(run.directory, checkpoint).path
    if (folder / CONFIG_FILE).is_file():
        return folder
    if (folder / "config.json").is_file():
        raise ConfigError(f"all weights were trained, so there is no adapter to merge: {folder} already is the model")
    steps = ", ".join(str(complete.step) for complete in complete_checkpoints(run.directory))
    if checkpoint is None and steps:
        raise ConfigError(
            f"the run in {root} has not finished, so it has no adapter yet; finish it (toolkit-sft --resume), or merge "
            f"one of its checkpoints with --checkpoint: {steps}"
        )
    raise ConfigError(f"there is no adapter in {folder}; train first")


def _coarsest_dtype(folder: Path) -> torch.dtype:
    stored = {FLOATS[tensor.dtype] for tensor in checkpoint_tensors(folder).values() if tensor.dtype in FLOATS}
    return max(stored, key=lambda dtype: torch.finfo(dtype).eps)


def _summary(report: MergeReport) -> str:
    learnt = f", {report.new_tokens} new tokens" if report.new_tokens else ""
    return (
        f"merged {report.merged} of {report.tensors} tensors{learnt} into {report.output} "
        f"({report.size_bytes / 2**30:.2f} GiB in {counted(report.files, 'file')})"
    )


def merge_adapter(
    base: ModelConfig,
    adapter: Path,
    output: Path,
    *,
    chat: ChatConfig,
    dtype: str | None = None,
    overwrite: bool = False,
    progress: OnTensor = lambda written, of: None,
) -> MergeReport:
    """Merge `adapter` into `base`, and write the resulting model to the folder `output`.

    Args:
        dtype: float32, bfloat16 or float16 for all weights; None keeps each tensor's own.

    Raises:
        ConfigError: `output` may not be written to.
        ModelError: base and adapter do not fit together, or are of a kind that cannot be merged.
        RunError: writing failed, e.g. because the disk is full.
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


def _write_weights(folder: Path, plan: Plan, progress: OnTensor) -> None:
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


def base_folder(config: ModelConfig) -> Path:
    """The folder with the base model's safetensors; a GGUF file is converted, a Hugging Face id downloaded.

    Raises:
        ModelError: the files cannot be obtained, or they are quantised.
    """
    name = model_files(config)
    folder = Path(name) if Path(name).is_dir() else _downloaded(name, config.revision)
    quantised = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("quantization_config")
    if quantised:
        raise ModelError(
            f"the base in {folder} is quantised ({quantised.get('quant_method', 'unknown method')}) and cannot be "
            "merged into; set model.name to the model before it was quantised"
        )
    return folder


def _downloaded(name: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_NEEDED))
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise ModelError(f"model.name: cannot download {name!r}: {reason}") from error


def return_freed_memory() -> None:
    """Make the C library return freed memory to the system; does nothing if it has no such call.

    glibc keeps freed blocks of up to 32 MiB for reuse, but few of them fit again when tensors have many sizes: a merge
    of 2 GB was seen to hold on to 1.7 GB.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and retains nothing either
    if trim is not None:
        trim(0)
