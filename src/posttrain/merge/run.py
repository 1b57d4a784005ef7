"""`toolkit-merge`: from a training config to a model that stands on its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from posttrain.base.console import console
from posttrain.base.locks import own_output, require_unowned
from posttrain.errors import ConfigError
from posttrain.merge.adapter import CONFIG_FILE
from posttrain.merge.merge import DTYPES, MergeReport, merge_adapter
from posttrain.merge.merge import Progress as OnTensor
from posttrain.merge.output import check_output
from posttrain.merge.shards import FLOATS, checkpoint_tensors
from posttrain.merge.verify import Verification, verify_merge
from posttrain.runs.checkpoints import complete_checkpoints, find_checkpoint
from posttrain.runs.trained_run import TrainedRun, load_trained_run


@dataclass(frozen=True)
class MergeResult:
    """What was written, and how it compares with the adapter; None where that was left out."""

    report: MergeReport
    verification: Verification | None


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
) -> MergeResult | None:
    """Merge the adapter of the run that `config_path` describes.

    Args:
        checkpoint: a step, or `latest`; None takes what the run exported at its end.
        output: `merged` in the run's folder unless given, and `merged-checkpoint-N` for a checkpoint.
        dtype: float32, bfloat16 or float16; None keeps the base's.
        model_index: which model is meant, where the config has several.
        overrides: `--set` options, which may move the run.
        dry_run: check, say what would be done, and return None.

    Raises:
        ConfigError: there is no such run or checkpoint, or nothing to merge in it, or `output` is taken, also by
            another process that writes it.
        ModelError: the adapter does not fit the base.
        RunError: the merged model does not compute what the adapter does; it is left there to be looked at.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}, or leave it out for the base's own")
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
        with _tensor_bar() as progress:
            report = merge_adapter(
                run.model, adapter, target, chat=run.chat, dtype=dtype, overwrite=overwrite, progress=progress
            )
        console.print(_summary(report), markup=False)
        if not verify:
            return MergeResult(report, None)
        verification = verify_merge(run.model, adapter, target, chat=run.chat, weights_dtype=_coarsest_dtype(target))
        console.print(f"compared with the adapter: {verification}", markup=False)
        return MergeResult(report, verification)


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
            f"the run in {root} has not ended, so it has no adapter yet; let it end (toolkit-sft --resume), or merge "
            f"one of its checkpoints by --checkpoint: {steps}"
        )
    raise ConfigError(f"there is no adapter in {folder}; train first")


def _coarsest_dtype(folder: Path) -> torch.dtype:
    stored = {FLOATS[tensor.dtype] for tensor in checkpoint_tensors(folder).values() if tensor.dtype in FLOATS}
    return max(stored, key=lambda dtype: torch.finfo(dtype).eps)


def _summary(report: MergeReport) -> str:
    files = "1 file" if report.files == 1 else f"{report.files} files"
    learnt = f", {report.new_tokens} new tokens" if report.new_tokens else ""
    return (
        f"merged {report.merged} of {report.tensors} tensors{learnt} into {report.output} "
        f"({report.size_bytes / 2**30:.2f} GiB in {files})"
    )


@contextmanager
def _tensor_bar() -> Iterator[OnTensor]:
    """A bar on stderr, where that is a terminal."""
    columns = (TextColumn("merging"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("tensors", total=None)
        yield lambda written, of: bar.update(task, completed=written, total=of)
