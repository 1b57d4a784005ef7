"""Estimate time and memory of a run's optimizer steps on this machine, for `--dry-run`.

Memory is the weights, gradients and optimizer states, and what autograd keeps of the largest micro-batch. Its constants
are fitted to the peaks that benchmarks/cost.py measured on Linux with glibc's malloc. Time is measured: on a CPU,
matrix products are the smaller part of a layer's time. So two models of the run's own shape that differ by some layers
are timed (see `shallow_model`), and the difference is scaled with the arithmetic of each pass. The time of compiled
layers is a constant from `compiled_layers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from posttrain.errors import ModelError
from posttrain.models.backend import training_device
from posttrain.models.kernels.frozen_head import LOGIT_BYTES, rows_at_once
from posttrain.models.model_shape import ModelShape, TrainedModel, read_shape
from posttrain.train.cost.batches import Batch, MicroBatch, Step
from posttrain.train.cost.measured import measured
from posttrain.train.cost.shallow_model import MEASURED_LAYERS, KeptBytes, Seconds
from posttrain.train.memory import GIB, available_bytes

# Memory of a process besides tensors (torch, transformers and PEFT), and what torch's compiler adds.
_FLOOR, _COMPILER = 0.52 * GIB, 0.1 * GIB
_HELD = 1.32
"""Ratio of memory held to what autograd keeps, for uncompiled layers: malloc cannot give back the gaps in between."""
_GATHERED = 5
"""Copies of the largest matrix, or layer, while shares of its gradient are summed (benchmarks/sharding.py)."""
_COMPILED = 0.68  # time of a layer with torch.compile, divided by that of the same layer without


@dataclass(frozen=True)
class Work:
    """What a run computes.

    Attributes:
        steps: a sample of its optimizer steps, evenly spaced, as one process runs them.
        count: optimizer steps in total.
        scored: passes before the first step, or a sample of them.
        times: number of all such passes, divided by that in the sample.
        has_copy: whether a frozen copy of the trained weights is the reference.
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
        seconds: time of each sampled optimizer step; empty if unknown.
        before: seconds before the first step.
        count: steps in total.
        bytes, available: peak memory, and the memory that is available.
        longest: tokens of the longest row.
        untimed: why `seconds` is empty.
    """

    seconds: Sequence[float]
    before: float
    count: int
    bytes: float
    available: float
    on_cuda: bool
    longest: int
    untimed: str = ""


def estimate(trained: TrainedModel, work: Work, *, timed: bool = True) -> Estimate:
    """Build the model's shape, measure it for a few seconds unless that was done today, and compute the estimate.

    Seconds are estimated only if `timed`, on a CPU, where the constants come from, and of models without experts and
    quantised weights. Of quantised layers, activations are those of layers that are not.

    Raises:
        ModelError: this kind of model is not supported here, or measuring a few of its layers takes too much memory.
    """
    device, shape = training_device().type, read_shape(trained)
    on_cpu = device == "cpu"
    untimed = _why_untimed(trained, shape, on_cpu)
    if shape.has_experts:
        _require_room_to_measure(shape, device)
    passes = [batch for step in work.steps for micro_batch in step for batch in micro_batch]
    kept, seconds = measured(trained, shape, device, _typical(passes) if timed and not untimed else None)
    most = max(peak_bytes(shape, kept, step, training_device()) for step in work.steps)
    copy = 4 * shape.everything.trained * work.has_copy
    steps, before = [], 0.0
    if seconds is not None:
        steps = [step_seconds(shape, seconds, step) for step in work.steps]
        before = work.times * step_seconds(shape, seconds, [work.scored]) if work.scored else 0.0
    return Estimate(
        seconds=steps,
        before=before,
        count=work.count,
        bytes=(_FLOOR + _COMPILER * shape.compiled) * on_cpu + most + copy,
        available=available_bytes(device),
        on_cuda=not on_cpu,
        longest=max(batch.width for batch in passes),
        untimed=untimed,
    )


def flops(shape: ModelShape, batch: Batch) -> int:
    """Operations of all layers in a pass.

    Each weight costs 2 per token forward, 2 for the gradient of the input, and 2 for its own gradient if it is trained;
    checkpointing runs the forward pass twice. Causal attention multiplies half of all token pairs, with the keys and
    with the values: on average, each pair costs 2 forward and 4 backward per element of the heads.
    """
    weights, pairs = shape.in_layers, batch.pairs * shape.attention
    forward = 2 * batch.tokens * (weights.frozen + weights.trained) + 2 * pairs
    if not batch.has_gradient:
        return forward
    backward = 2 * batch.tokens * (weights.frozen + 2 * weights.trained) + 4 * pairs
    return forward * (1 + shape.checkpointing) + backward


def step_seconds(shape: ModelShape, seconds: Seconds, step: Step) -> float:
    """Seconds of an optimizer step."""
    rate = flops(shape, Batch(seconds.rows, seconds.width, 0)) / (shape.layers * seconds.layer)
    # Without gradient, the head's time is scaled with its arithmetic.
    forward, both = shape.head.frozen + shape.head.trained, 2 * shape.head.frozen + 3 * shape.head.trained
    total = shape.everything.trained * seconds.update
    for batch in (batch for micro_batch in step for batch in micro_batch):
        compiled = _COMPILED if shape.compiled and batch.has_gradient else 1.0
        head = seconds.head * batch.trained * (1 if batch.has_gradient else forward / both)
        total += compiled * flops(shape, batch) / rate + seconds.around + head
    return total


def _why_untimed(trained: TrainedModel, shape: ModelShape, on_cpu: bool) -> str:
    """Why the time of a step is unknown; empty if it can be estimated."""
    if not on_cpu:
        return "time is estimated on a CPU only"
    if shape.has_experts:
        return "time is not estimated for models with experts"
    return "time is not estimated for quantised weights" if trained.model.quantization != "none" else ""


def _require_room_to_measure(shape: ModelShape, device: str) -> None:
    """Raise ModelError if the measured layers do not fit: those of a large model with experts are large too."""
    around = shape.weight_bytes / shape.layers
    if (need := 2 * (MEASURED_LAYERS * around)) > available_bytes(device):
        raise ModelError(
            f"measuring {MEASURED_LAYERS} of its layers takes {need / GIB:.0f} GiB, more than is available; its "
            f"weights are {shape.weight_bytes / GIB:.0f} GiB"
        )


def _typical(passes: Sequence[Batch]) -> tuple[int, int]:
    """Rows and width of a typical pass; the width is the mean over tokens."""
    tokens = sum(batch.tokens for batch in passes)
    width = round(sum(batch.width * batch.tokens for batch in passes) / tokens)
    return max(1, round(tokens / len(passes) / width)), width


def peak_bytes(shape: ModelShape, kept: KeptBytes, step: Step, device: torch.device) -> float:
    """Peak bytes of tensors in training on `device`, reached in the largest micro-batch of a step."""
    # Gradients replace activations, unless they exist already from the previous micro-batch.
    forward = max(_kept_by(shape, kept, micro_batch, device) for micro_batch in step)
    gradients = 4 * shape.everything.trained / shape.shared_by
    most = forward + gradients if len(step) > 1 else max(forward, gradients)
    return (shape.weight_bytes + shape.state_bytes) / shape.shared_by + _gathered_bytes(shape) + most


def _gathered_bytes(shape: ModelShape) -> float:
    """Bytes of what is whole for a while in a process that has a share of the weights."""
    if shape.shared_by == 1:
        return 0.0
    in_layers, head = (each.frozen + each.trained for each in (shape.in_layers, shape.head))
    largest = max(in_layers / shape.layers, head)
    return _GATHERED * largest * shape.weight_bytes / (shape.everything.frozen + shape.everything.trained)


def _kept_by(shape: ModelShape, kept: KeptBytes, micro_batch: MicroBatch, device: torch.device) -> float:
    """Bytes that are kept at the end of a micro-batch's forward passes."""
    batches = [batch for batch in micro_batch if batch.has_gradient]
    of_layer = [float(np.dot(kept.layer[1:], batch.sizes)) for batch in batches]
    # One more layer, for the gradients that exist at a time.
    activations = shape.layers * sum(of_layer) + max(of_layer)
    if shape.checkpointing or shape.offloads:
        inputs = shape.hidden * kept.residual * sum(batch.tokens for batch in batches)
        activations = (0 if shape.offloads else shape.layers * inputs) + 2 * max(of_layer)
    logits = max(batch.trained for batch in micro_batch)
    if kept.around[-1] < shape.vocabulary:  # a head that keeps no logits computes some rows at a time
        logits = min(logits, rows_at_once(device, shape.vocabulary))
    always = shape.layers * kept.layer[0] + kept.around[0] + LOGIT_BYTES * logits * shape.vocabulary
    # The gradient of the sums of one layer; those of the other layers are not kept if they are recomputed.
    recomputed = (shape.layers - 1) * shape.checkpointing
    always += shape.summed_bytes / shape.layers * (1 - recomputed)
    around = sum(np.dot(kept.around[1:], batch.sizes) for batch in batches)
    return float((1.0 if shape.compiled else _HELD) * activations + always + around)
