"""How long the optimizer steps of a run take on this machine, and how much memory: what `--dry-run` says of it.

Time: `probe` measures a layer, the head and the optimizer of the run's own shape, and what was measured is scaled with
the arithmetic of each pass. Memory: weights, gradients and the optimizer's states, and what autograd keeps of the
largest micro-batch. The constants of memory are fitted to the peaks that benchmarks/cost.py found on Linux, with
glibc's malloc; that of compiled layers comes from `compiled_layers`.
"""

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from posttrain.base.processes import process_count
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.step_plan import StepPlanner
from posttrain.models.devices import training_device
from posttrain.models.kernels.frozen_head import LOGIT_BYTES, rows_at_once
from posttrain.train.model_shape import ModelShape, TrainedModel, read_shape
from posttrain.train.probe import KeptBytes, Probe, Seconds

_GIB = 2**30
_STEPS = 100
_FLOOR = 0.52 * _GIB
"""What a process has besides tensors: torch, transformers and PEFT."""
_COMPILER = 0.1 * _GIB
"""The same of torch's compiler."""
_HELD = 1.32
"""Memory over what autograd keeps in it, of layers as they are written: malloc cannot give back what lies between."""
_COMPILED = 0.68
"""Time of a layer through torch.compile over that of the same layer as it is written."""
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


@dataclass(frozen=True)
class Batch:
    """Rows that go through the model together.

    Attributes:
        width: tokens of each row, with its padding.
        trained: tokens of all rows that the head computes.
        has_gradient: whether there is a backward pass.
    """

    rows: int
    width: int
    trained: int
    has_gradient: bool = True

    @property
    def tokens(self) -> int:
        """All of them, with padding."""
        return self.rows * self.width


MicroBatch = Sequence[Batch]
"""Passes whose gradient is computed together."""
Step = Sequence[MicroBatch]


@dataclass(frozen=True)
class Work:
    """What a run computes.

    Attributes:
        steps: some of its optimizer steps, evenly spaced, as one process makes them.
        count: how many there are in all.
        scored: passes that are made before the first one, or a sample of them.
        times: how many times as many there are.
        has_copy: whether a frozen copy of what is trained is the reference.
    """

    steps: Sequence[Step]
    count: int
    scored: MicroBatch = ()
    times: float = 1.0
    has_copy: bool = False


@dataclass(frozen=True)
class Estimate:
    """What a run costs.

    Attributes:
        seconds: of each optimizer step that was looked at; none where they are not known.
        before: seconds before the first one.
        count: steps in all.
        bytes, available: the peak of memory, and what there is.
        longest: tokens of the longest row.
    """

    seconds: Sequence[float]
    before: float
    count: int
    bytes: float
    available: float
    on_cuda: bool
    longest: int


def flops(shape: ModelShape, batch: Batch) -> int:
    """Of all layers in a pass.

    A product with a weight is 2 forwards, 2 for the gradient of what is multiplied, and 2 for the weight's own where
    it is trained; checkpointing makes the forward pass twice. Causal attention multiplies half of all pairs of tokens,
    with the keys and with the values: 2 for each pair and each of the heads' numbers forwards, and 4 backwards.
    """
    weights, pairs = shape.in_layers, batch.rows * batch.width**2 * shape.attention
    forward = 2 * batch.tokens * (weights.frozen + weights.trained) + 2 * pairs
    if not batch.has_gradient:
        return forward
    backward = 2 * batch.tokens * (weights.frozen + 2 * weights.trained) + 4 * pairs
    return forward * (1 + shape.checkpointing) + backward


def step_seconds(shape: ModelShape, seconds: Seconds, step: Step) -> float:
    """Of an optimizer step."""
    rate = flops(shape, Batch(seconds.rows, seconds.width, 0)) / (shape.layers * seconds.layer)
    # The head's share of a pass without gradient is that of its arithmetic.
    forward, both = shape.head.frozen + shape.head.trained, 2 * shape.head.frozen + 3 * shape.head.trained
    total = shape.everything.trained * seconds.update
    for batch in (batch for micro_batch in step for batch in micro_batch):
        compiled = _COMPILED if shape.compiled and batch.has_gradient else 1.0
        head = seconds.head * batch.trained * (1 if batch.has_gradient else forward / both)
        total += compiled * flops(shape, batch) / rate + seconds.around + head
    return total


def peak_bytes(shape: ModelShape, kept: KeptBytes, step: Step) -> float:
    """The most that training has of tensors, in the largest micro-batch of a step."""
    # Gradients come as activations go, unless they are there from the micro-batch before.
    forward = max(_kept_bytes(shape, kept, micro_batch) for micro_batch in step)
    gradients = 4 * shape.everything.trained
    most = forward + gradients if len(step) > 1 else max(forward, gradients)
    return shape.weight_bytes + shape.state_bytes + most


def _kept_bytes(shape: ModelShape, kept: KeptBytes, micro_batch: MicroBatch) -> float:
    """At the end of the forward passes of a micro-batch."""
    batches = [batch for batch in micro_batch if batch.has_gradient]
    of_layer = [kept.by_layer.growing(batch.rows, batch.width) for batch in batches]
    # One layer more, for the gradients that there are at a time.
    activations = shape.layers * sum(of_layer) + max(of_layer)
    if shape.checkpointing:
        inputs = shape.hidden * kept.residual * sum(batch.tokens for batch in batches)
        activations = shape.layers * inputs + 2 * max(of_layer)
    logits = max(batch.trained for batch in micro_batch)
    if kept.by_head < shape.vocabulary:  # a head that keeps no logits computes some rows at a time
        logits = min(logits, rows_at_once(training_device(), shape.vocabulary))
    return (
        (1.0 if shape.compiled else _HELD) * activations
        + shape.layers * kept.by_layer.always
        + kept.around.always
        + sum(kept.around.growing(batch.rows, batch.width) for batch in batches)
        + kept.by_head * sum(batch.trained for batch in batches)
        + LOGIT_BYTES * logits * shape.vocabulary
    )


def sampled_steps(count: int) -> list[int]:
    """Numbers of at most 100 optimizer steps of `count`, evenly spaced, with the first and the last."""
    return sorted({round(step) for step in np.linspace(0, count - 1, min(count, _STEPS))})


def micro_batches_of(planner: StepPlanner, step: int) -> Iterator[list[Draw]]:
    """The rows of each micro-batch that one process makes of a step; every process makes as many."""
    plan, width = planner.plan(step), planner.micro_batch_size
    for first in range(0, len(plan.order), width * process_count()):
        yield [plan.draws[slot] for slot in plan.order[first : first + width]]


def estimate(trained: TrainedModel, work: Work, *, timed: bool = True) -> Estimate:
    """Build the shape, measure this machine for a second or two where it is `timed`, and compute.

    Seconds are known on a CPU only, where the constants come from.

    Raises:
        ModelError: the model is of a kind that is not known here.
    """
    device, shape = training_device().type, read_shape(trained)
    probe = Probe(trained, shape, device)
    kept, on_cpu = probe.kept_bytes(), device == "cpu"
    micro_batches = [micro_batch for step in work.steps for micro_batch in step]
    most = max(peak_bytes(shape, kept, step) for step in work.steps)
    copy = 4 * shape.everything.trained * work.has_copy
    steps, before = [], 0.0
    if timed and on_cpu:
        seconds = probe.seconds(*_typical(micro_batches), checkpointing=shape.checkpointing)
        steps = [step_seconds(shape, seconds, step) for step in work.steps]
        before = work.times * step_seconds(shape, seconds, [work.scored]) if work.scored else 0.0
    return Estimate(
        seconds=steps,
        before=before,
        count=work.count,
        bytes=(_FLOOR + _COMPILER * shape.compiled) * on_cpu + most + copy,
        available=available_bytes(device),
        on_cuda=not on_cpu,
        longest=max(batch.width for micro_batch in micro_batches for batch in micro_batch),
    )


def _typical(micro_batches: Sequence[MicroBatch]) -> tuple[int, int]:
    """Rows and width of the pass that a token is in on average."""
    passes = [batch for micro_batch in micro_batches for batch in micro_batch]
    tokens = sum(batch.tokens for batch in passes)
    width = round(sum(batch.width * batch.tokens for batch in passes) / tokens)
    return max(1, round(tokens / len(passes) / width)), width


def estimate_line(found: Estimate) -> str:
    """What a plan says of it."""
    need, free = f"{found.bytes / _GIB:.1f} GiB of memory", f"of {found.available / _GIB:.1f} that are free"
    if not found.seconds:
        return f"estimate        at most {need} to learn, {free}{'; seconds are known on a CPU only' * found.on_cuda}"
    mean, least, most = sum(found.seconds) / len(found.seconds), min(found.seconds), max(found.seconds)
    before = f" and {_spoken(found.before)} before for the reference" * (found.before > 0)
    return (
        f"estimate        about {_spoken(mean)} per step ({_spoken(least)} to {_spoken(most)}), "
        f"{_spoken(mean * found.count)} in all{before}, without evaluations; {need}, {free}"
    )


def _spoken(seconds: float) -> str:
    """Two digits, in a unit that people use."""
    if seconds < 99.5:
        return f"{seconds:.{0 if seconds >= 9.95 else 1 if seconds >= 0.95 else 2}f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes < 48 * 60 else f"{minutes / 1440:.1f} days"


def available_bytes(device: str) -> float:
    """Memory that this process may have in all: of the device, or of the machine, its container and its limit."""
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    process = psutil.Process().memory_info()
    free = [float(psutil.virtual_memory().available)]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free.append(limit - process.vms)
    for folder, most, used in _CGROUPS:
        allowed, taken = (_number(Path(folder, name)) for name in (most, used))
        if allowed is not None and taken is not None:
            free.append(allowed - taken)
    return max(min(free), 0.0) + process.rss


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):  # there is no such limit
        return None
