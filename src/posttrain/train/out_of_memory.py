"""A run that does not fit into memory ends with one message: where it was, what was in use, and what would help."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posttrain.errors import RunError, ToolkitError
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import RunCounters
from posttrain.train.memory_advice import Change, Phase, Situation, cheapest_changes

_GIB = 2**30
# Keys that a run may change and still be resumed as the same run.
_CHANGEABLE = frozenset({"rollout.gpu_memory_utilization", "rollout.sleep"})
_SIGNS = ("out of memory", "allocate memory", "not enough memory", "bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")
_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

_MARK = "posttrain_phase"
"""The attribute of an error that says in which phase it was raised."""


@contextmanager
def during(phase: Phase, words: str) -> Iterator[None]:
    """Mark an error that leaves the block with what was going on: the innermost such block counts.

    Args:
        words: how a message says it, as in "out of memory in optimizer step 3".
    """
    try:
        yield
    except Exception as error:
        if not hasattr(error, _MARK):
            setattr(error, _MARK, (phase, words))
        raise


class ForwardSizes:
    """The size of what went through a model last: `rows`, and `tokens` of the longest with its padding."""

    def __init__(self) -> None:
        self.rows = 0
        self.tokens = 0

    def watch(self, model: Any) -> None:
        """Look at the ids that the embedding of `model` gets, from now on."""
        model.get_input_embeddings().register_forward_pre_hook(self._remember)

    def _remember(self, embedding: Any, arguments: tuple[Any, ...]) -> None:
        if arguments:
            self.rows, self.tokens = arguments[0].shape


@contextmanager
def memory_explained(config: dict[str, Any], run: RunDirectory, counters: RunCounters) -> Iterator[ForwardSizes]:
    """Turn a failed allocation into one message.

    Args:
        config: that of the run, as JSON; it is looked at for what could be changed.
        counters: those that go on with the run.

    Yields:
        What should watch the model once there is one.

    Raises:
        RunError: memory ran out, of the device or of the machine.
    """
    sizes = ForwardSizes()
    try:
        yield sizes
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        raise RunError(_message(error, config, run, counters, sizes)) from error


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, be it that another error was made of it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # Ours are in words for a person, who may be told of another machine's memory.
    is_ours = isinstance(error, ToolkitError)
    if isinstance(error, RuntimeError) and not is_ours and any(sign in str(error) for sign in _SIGNS):
        return True
    return error.__cause__ is not None and ran_out_of_memory(error.__cause__)


def _message(
    error: Exception, config: dict[str, Any], run: RunDirectory, counters: RunCounters, sizes: ForwardSizes
) -> str:
    import torch  # whoever runs out of memory has it

    on_cuda = torch.cuda.is_available() and not _of_the_machine(error)
    phase, place = whereabouts(error)
    measured = phase in (Phase.STEP, Phase.SCORE) and sizes.rows > 0
    situation = Situation(config, phase, on_cuda, sizes.tokens if measured else None)
    changes = cheapest_changes(situation)
    rows = f", with {sizes.rows} rows of up to {sizes.tokens:,} tokens in the model at once" * measured
    used = _cuda_memory() if on_cuda else _machine_memory()
    return "\n".join(
        [
            f"out of memory {place}{rows}: {used}{_asked(error)}",
            *_advice(changes),
            _way_on(run, counters.step, changes),
        ]
    )


def _of_the_machine(error: BaseException) -> bool:
    """Whether it was the machine's memory that ran out, and not that of its CUDA device."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in f"{error} {error.__cause__}"


def whereabouts(error: BaseException) -> tuple[Phase, str]:
    """What was going on when an error was raised, and how to say so, by the mark of the first of its causes."""
    found = Phase.LOAD, "before the first optimizer step"
    cause: BaseException | None = error
    while cause is not None:
        found = getattr(cause, _MARK, found)
        cause = cause.__cause__
    return found


def _asked(error: BaseException) -> str:
    found = _ASKED.search(str(error)) or _ASKED.search(str(error.__cause__))
    if found is None:
        return ""
    return f", and {float(found[1]) * _UNITS[found[2].lower()] / _GIB:.2f} GiB more were asked for"


def _cuda_memory() -> str:
    import torch

    free, total = torch.cuda.mem_get_info()
    device = torch.cuda.current_device()
    return (
        f"of the {total / _GIB:.1f} GiB of cuda:{device} ({torch.cuda.get_device_name(device)}) "
        f"{(total - free) / _GIB:.1f} were in use, {torch.cuda.memory_allocated() / _GIB:.1f} of them by tensors of "
        "this process"
    )


def _machine_memory() -> str:
    import psutil

    process, machine = psutil.Process().memory_info(), psutil.virtual_memory()
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        return f"this process may have {limit / _GIB:.1f} GiB (ulimit -v), of which {process.vms / _GIB:.1f} were taken"
    return (
        f"of the machine's {machine.total / _GIB:.1f} GiB {machine.available / _GIB:.1f} were free, and this process "
        f"had {process.rss / _GIB:.1f}"
    )


def _advice(changes: list[Change]) -> list[str]:
    if not changes:
        return ["nothing in this config can be lowered: take a smaller model, or more memory"]
    return ["what would help, the cheapest first:", *(f"  {change}" for change in changes)]


def _way_on(run: RunDirectory, done: int, changes: list[Change]) -> str:
    latest = latest_checkpoint(run) if done else None
    if latest is None:
        return "nothing was saved yet; start again, with --overwrite where the run's folder is there already"
    same = [change.key for change in changes if change.key in _CHANGEABLE]
    also = f" (and another {' or '.join(same)})" if same else ""
    is_adapter = (latest.path / "adapter_config.json").is_file()
    key = "model.adapter, in the place of the lora section," if is_adapter else "model.name"
    return (
        f"{latest.path} is whole: --resume goes on from it with the same config{also}; with another it is a new run, "
        f"by --run-name, which goes on from what was learnt if {key} names that folder"
    )
