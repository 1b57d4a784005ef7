"""Explain out-of-memory errors: where they happened, what was in use, and which settings would help.

The suggestions come from the config alone: arithmetic on its values, without torch.
"""

import re
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain.config.sections.engines import ENGINES, EngineTraits
from posttrain.errors import RunError, ToolkitError
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import RunCounters

GIB = 2**30
_ROUND_TO = 64  # suggested lengths in tokens are multiples of this, if they are long enough
# Keys that may change in a run that is resumed as the same run.
_CHANGEABLE = frozenset({"rollout.gpu_memory_utilization", "rollout.sleep"})
_SIGNS = ("out of memory", "allocate memory", "not enough memory", "bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")
_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)

_MARK = "posttrain_phase"  # attribute of an error that records the phase in which it was raised


class Phase(StrEnum):
    """What was going on when memory ran out."""

    LOAD = "load"
    """The model was loaded."""
    ENGINE = "engine"
    """A rollout engine beside the training model was started or got its weights."""
    GENERATE = "generate"
    """Completions were generated."""
    SCORE = "score"
    """A forward pass without gradient: an evaluation or a reference."""
    STEP = "step"
    """A forward and backward pass."""
    UPDATE = "update"
    """The optimizer changed the weights."""


@contextmanager
def during(phase: Phase, words: str) -> Iterator[None]:
    """Mark an error that leaves the block with its phase; the innermost block counts.

    Args:
        words: how a message names the phase, as in "out of memory in optimizer step 3".
    """
    try:
        yield
    except Exception as error:
        if not hasattr(error, _MARK):
            setattr(error, _MARK, (phase, words))
        raise


def whereabouts(error: BaseException) -> tuple[Phase, str]:
    """The phase in which an error was raised, and its words, from the deepest marked error in the chain of causes."""
    found = Phase.LOAD, "before the first optimizer step"
    cause: BaseException | None = error
    while cause is not None:
        found = getattr(cause, _MARK, found)
        cause = cause.__cause__
    return found


class ForwardSizes:
    """Size of a model's latest input: `rows`, and `tokens` of the longest row, including padding."""

    def __init__(self) -> None:
        self.rows = 0
        self.tokens = 0

    def watch(self, model: Any) -> None:
        """Record the shape of the ids that the embedding of `model` receives from now on."""
        model.get_input_embeddings().register_forward_pre_hook(self._remember)

    def _remember(self, embedding: Any, arguments: tuple[Any, ...]) -> None:
        if arguments:
            self.rows, self.tokens = arguments[0].shape


@contextmanager
def memory_explained(config: dict[str, Any], run: RunDirectory, counters: RunCounters) -> Iterator[ForwardSizes]:
    """Turn a failed allocation into one message.

    Args:
        config: the run's config as JSON, in which to look for settings to change.
        counters: the counters that the run updates.

    Yields:
        The sizes; call their `watch` once there is a model.

    Raises:
        RunError: the device or the machine ran out of memory.
    """
    sizes = ForwardSizes()
    try:
        yield sizes
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        raise RunError(_message(error, config, run, counters, sizes)) from error


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, even if another error was raised from it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # Our own errors are text for people, which may mention another machine's memory.
    is_ours = isinstance(error, ToolkitError)
    if isinstance(error, RuntimeError) and not is_ours and any(sign in str(error) for sign in _SIGNS):
        return True
    return error.__cause__ is not None and ran_out_of_memory(error.__cause__)


@dataclass(frozen=True)
class Situation:
    """What is known about the failure.

    Attributes:
        config: the resolved config as plain values, by section; sections that a command does not have are missing.
        longest: tokens of the longest row in the model, if known.
    """

    config: Mapping[str, Any]
    phase: Phase
    on_cuda: bool
    longest: int | None = None

    def value(self, key: str) -> Any:
        """The value of `section.key`; None if there is no such section."""
        found: Any = self.config
        for name in key.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def trains_all(self) -> bool:
        """Whether all weights are trained, without an adapter."""
        return self.value("lora") is None and self.value("model.adapter") is None

    @property
    def engine(self) -> EngineTraits | None:
        """The engine that generates the completions to train on; None if there are none."""
        name = self.value("rollout.engine")
        return ENGINES["own"] if isinstance(name, Mapping) else ENGINES.get(name)

    @property
    def engine_beside(self) -> EngineTraits | None:
        """That engine, if it shares a CUDA device with the training model."""
        return self.engine if self.on_cuda and self.engine is not None and self.engine.is_beside else None


@dataclass(frozen=True)
class Change:
    """A change of one key: its value before and after, and what the change costs."""

    key: str
    before: str
    after: str
    cost: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} → {self.after} ({self.cost})"


def cheapest_changes(situation: Situation, limit: int = 3) -> list[Change]:
    """The `limit` cheapest changes that would help, cheapest first; fewer if there are not as many."""
    return list(islice(_changes(situation), limit))


def _changes(situation: Situation) -> Iterator[Change]:
    yield from _same_training(situation)
    yield from _slower_or_less_exact(situation)
    yield from _other_training(situation)


def _same_training(situation: Situation) -> Iterator[Change]:
    phase, value, engine = situation.phase, situation.value, situation.engine
    # Under a new adapter, the base itself is the reference, which needs no memory of its own.
    is_copy = situation.trains_all or value("model.adapter") is not None
    if value("reference.type") == "live" and is_copy:
        yield Change("reference.type", "live", "cached", "computed once before training, so no frozen copy is kept")
    in_training = phase in (Phase.STEP, Phase.SCORE)
    cost = "the same training in smaller pieces: rows_per_step is unchanged"
    if in_training and (tokens := value("training.micro_batch_tokens")):
        yield Change("training.micro_batch_tokens", str(tokens), str(max(1, tokens // 2)), cost)
    elif in_training and (rows := value("training.micro_batch_size")) > 1:
        # A divisor, so that an optimizer step still consists of whole micro-batches, on any number of devices.
        fewer = max(divisor for divisor in range(1, rows) if rows % divisor == 0)
        yield Change("training.micro_batch_size", str(rows), str(fewer), cost)
    in_batches = phase is Phase.GENERATE and engine is not None and not engine.has_weights
    if in_batches and (size := value("rollout.batch_size")) > 1:
        yield Change("rollout.batch_size", str(size), str(size // 2), "the same number of completions, in more rounds")
    if (beside := situation.engine_beside) is not None:
        is_awake = phase in (Phase.ENGINE, Phase.GENERATE)
        if beside.sleeps and not is_awake and not value("rollout.sleep"):
            moved = "its weights are moved to the machine's memory and back"
            cost = f"{beside.title}'s memory is freed while the model trains; {moved}"
            yield Change("rollout.sleep", "false", "true", cost)
        share = value("rollout.gpu_memory_utilization")
        if share > 0.1 and (is_awake or not value("rollout.sleep")):
            less = max(0.1, round(share * 2 / 3, 2))
            cost = f"{beside.title} answers fewer prompts at once"
            yield Change("rollout.gpu_memory_utilization", f"{share:g}", f"{less:g}", cost)


def _slower_or_less_exact(situation: Situation) -> Iterator[Change]:
    phase, value = situation.phase, situation.value
    if phase is Phase.STEP and not value("training.gradient_checkpointing"):
        yield Change("training.gradient_checkpointing", "false", "true", "about a third slower")
    has_states = phase in (Phase.STEP, Phase.UPDATE) and situation.on_cuda and situation.trains_all
    if has_states and value("training.optimizer") == "adamw":
        cost = "2 bytes of optimizer states per weight instead of 8"
        yield Change("training.optimizer", "adamw", "adamw_8bit", cost)
    if value("model.dtype") == "float32":
        yield Change("model.dtype", "float32", "auto", "16 bits if the device computes them fast; less precise")
    engine = situation.engine
    can_quantise = situation.on_cuda and not situation.trains_all and (engine is None or engine.samples_quantised)
    if can_quantise and (kind := value("model.quantization")) in ("none", "8bit"):
        cost = "the frozen weights take half a byte each; slower and less precise"
        yield Change("model.quantization", kind, "4bit", cost)


def _other_training(situation: Situation) -> Iterator[Change]:
    phase, value = situation.phase, situation.value
    new_tokens = value("rollout.max_new_tokens")
    if phase in (Phase.STEP, Phase.SCORE, Phase.GENERATE) and isinstance(new_tokens, int) and new_tokens > 1:
        cost = "longer completions are truncated"
        yield Change("rollout.max_new_tokens", str(new_tokens), str(_half(new_tokens)), cost)
    # Generated completions have limits of their own.
    if phase in (Phase.STEP, Phase.SCORE) and value("rollout") is None:
        tokens = value("chat.max_length")
        shorter = max(8, _half(min(tokens, situation.longest or tokens)))
        if shorter < tokens:
            fates = {"error": "refused", "drop": "dropped", "left": "truncated", "right": "truncated"}
            cost = f"longer conversations are {fates[value('chat.truncation')]}"
            yield Change("chat.max_length", str(tokens), str(shorter), cost)
    if phase is not Phase.GENERATE and (modules := value("lora.modules_to_save")):
        cost = "saves 16 bytes for each of their weights, which are then not trained"
        yield Change("lora.modules_to_save", f"[{', '.join(modules)}]", "[]", cost)
    if situation.trains_all:
        # float32: weight 4, gradient 4, two moments 8; frozen in 16 bits: 2.
        cost = "trains an adapter instead of all weights: 2 bytes for each weight, or 4 in float32, instead of 16"
        yield Change("lora", "null", "{r: 16}", cost)


def _half(tokens: int) -> int:
    half = tokens // 2
    return half - half % _ROUND_TO if half >= _ROUND_TO else half


def _message(
    error: Exception, config: dict[str, Any], run: RunDirectory, counters: RunCounters, sizes: ForwardSizes
) -> str:
    import torch  # already imported where memory runs out

    of_the_machine = isinstance(error, MemoryError) or "DefaultCPUAllocator" in f"{error} {error.__cause__}"
    on_cuda = torch.cuda.is_available() and not of_the_machine
    phase, place = whereabouts(error)
    measured = phase in (Phase.STEP, Phase.SCORE) and sizes.rows > 0
    changes = cheapest_changes(Situation(config, phase, on_cuda, sizes.tokens if measured else None))
    rows = f", with {sizes.rows} rows of up to {sizes.tokens:,} tokens in the model at once" * measured
    used = _cuda_memory() if on_cuda else _machine_memory()
    advice = ["nothing in this config can be reduced: use a smaller model, or more memory"]
    if changes:
        advice = ["what would help, cheapest first:", *(f"  {change}" for change in changes)]
    first = f"out of memory {place}{rows}: {used}{_asked(error)}"
    return "\n".join([first, *advice, _way_on(run, counters.step, changes)])


def _asked(error: BaseException) -> str:
    found = _ASKED.search(str(error)) or _ASKED.search(str(error.__cause__))
    if found is None:
        return ""
    return f", and the failed allocation needed {float(found[1]) * _UNITS[found[2].lower()] / GIB:.2f} GiB more"


def _cuda_memory() -> str:
    import torch

    free, total = torch.cuda.mem_get_info()
    device = torch.cuda.current_device()
    return (
        f"{(total - free) / GIB:.1f} of the {total / GIB:.1f} GiB of cuda:{device} "
        f"({torch.cuda.get_device_name(device)}) were in use, {torch.cuda.memory_allocated() / GIB:.1f} of them by "
        "tensors of this process"
    )


def _machine_memory() -> str:
    import psutil

    process, machine = psutil.Process().memory_info(), psutil.virtual_memory()
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        return f"this process used {process.vms / GIB:.1f} of its {limit / GIB:.1f} GiB (ulimit -v)"
    return (
        f"{machine.available / GIB:.1f} of the machine's {machine.total / GIB:.1f} GiB were free, this process used "
        f"{process.rss / GIB:.1f}"
    )


def available_bytes(device: str) -> float:
    """Bytes that this process may use in total: of the device, or of the machine, its container and its limit."""
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[0])
    import psutil

    process = psutil.Process().memory_info()
    free = [float(psutil.virtual_memory().available)]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free.append(limit - process.vms)
    for folder, most, used in _CGROUPS:
        try:
            free.append(float(Path(folder, most).read_text()) - float(Path(folder, used).read_text()))
        except (OSError, ValueError):  # there is no such limit
            continue
    return max(min(free), 0.0) + process.rss


def _way_on(run: RunDirectory, done: int, changes: list[Change]) -> str:
    latest = latest_checkpoint(run) if done else None
    if latest is None:
        return "nothing was saved yet; start again, with --overwrite if the run's folder already exists"
    same = [change.key for change in changes if change.key in _CHANGEABLE]
    also = f" ({' and '.join(same)} may change)" if same else ""
    is_adapter = (latest.path / "adapter_config.json").is_file()
    key = "model.adapter, in place of the lora section," if is_adapter else "model.name"
    return (
        f"{latest.path} is complete: --resume continues from it with the same config{also}; another config needs a new "
        f"run (--run-name), which starts from these weights if {key} names that folder"
    )
