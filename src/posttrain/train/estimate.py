"""Estimate time and memory of a run's optimizer steps on this machine, for `--dry-run`.

Memory is the weights, gradients and optimizer states, and what autograd keeps of the largest micro-batch. Its constants
are fitted to the peaks that benchmarks/cost.py measured on Linux with glibc's malloc. Time is measured: on a CPU,
matrix products are the smaller part of a layer's time. So two models of the run's own shape that differ by some layers
are timed, and the difference is scaled with the arithmetic of each pass. The time of compiled layers is a constant from
`compiled_layers`.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.backend import training_device
from posttrain.models.kernels.frozen_head import LOGIT_BYTES, rows_at_once
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.model_shape import ModelShape, TrainedModel, read_shape
from posttrain.train.memory import GIB, available_bytes

# Memory of a process besides tensors (torch, transformers and PEFT), and what torch's compiler adds.
_FLOOR, _COMPILER = 0.52 * GIB, 0.1 * GIB
_HELD = 1.32
"""Ratio of memory held to what autograd keeps, for uncompiled layers: malloc cannot give back the gaps in between."""
_COMPILED = 0.68  # time of a layer with torch.compile, divided by that of the same layer without

_DEPTH = 3  # layers of the larger measured model; the smaller one has 1
# Most tokens of a timed pass, unless one row is longer; beyond that, time per token stays the same.
_TOKENS = 512
_LONGEST = 1024
_ENTRIES = 8192
_LABELLED = 128
# Rounds of passes: at least the first number, and at most the last while they take less than `_SECONDS`.
_ROUNDS, _SECONDS = range(2, 7), 1.0


@dataclass(frozen=True)
class Batch:
    """Rows that go through the model together.

    Attributes:
        width: tokens of the longest row, to which the others are padded.
        trained: tokens for which the head is computed, over all rows.
        has_gradient: whether there is a backward pass.
        packed: tokens of each part of a sequence without padding; empty if rows are padded.
    """

    rows: int
    width: int
    trained: int
    has_gradient: bool = True
    packed: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of all rows, including padding."""
        return sum(self.packed) or self.rows * self.width

    @property
    def pairs(self) -> int:
        """Token pairs within a row, over all rows."""
        return sum(tokens * tokens for tokens in self.packed) or self.tokens * self.width

    @property
    def sizes(self) -> np.ndarray:
        """What kept bytes grow with: tokens, token pairs, and tokens for which the head is computed."""
        return np.array([self.tokens, self.pairs, self.trained])


MicroBatch = Sequence[Batch]
"""Passes whose gradient is computed together."""
Step = Sequence[MicroBatch]

# The bytes that any pass keeps follow from those of these passes.
_SMALL = (Batch(1, 32, 1), Batch(2, 32, 1), Batch(1, 64, 1), Batch(1, 32, 17))


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
    """

    seconds: Sequence[float]
    before: float
    count: int
    bytes: float
    available: float
    on_cuda: bool
    longest: int


@dataclass(frozen=True)
class KeptBytes:
    """What a forward pass keeps for its backward pass, without gradient checkpointing.

    Attributes:
        layer, around: bytes of one layer, and of everything else, shape [4]: a constant term, and a coefficient for
            each of `Batch.sizes`.
        residual: bytes of each number that is passed from layer to layer.
    """

    layer: np.ndarray
    around: np.ndarray
    residual: int


@dataclass(frozen=True)
class Seconds:
    """Measured times.

    Attributes:
        rows, width: size of the timed passes.
        layer: one layer in such a pass, forward and backward.
        around: such a pass without its layers.
        head: the head, forward and backward, per token for which it is computed.
        update: the optimizer, per trained weight.
    """

    rows: int
    width: int
    layer: float
    around: float
    head: float
    update: float


def estimate(trained: TrainedModel, work: Work, *, timed: bool = True) -> Estimate:
    """Build the model's shape, measure this machine for a second or two if `timed`, and compute the estimate.

    Seconds are estimated only on a CPU, where the constants come from.

    Raises:
        ModelError: this kind of model is not supported here.
    """
    device, shape = training_device().type, read_shape(trained)
    probe = Probe(trained, shape, device)
    kept, on_cpu = probe.kept_bytes(), device == "cpu"
    passes = [batch for step in work.steps for micro_batch in step for batch in micro_batch]
    most = max(peak_bytes(shape, kept, step) for step in work.steps)
    copy = 4 * shape.everything.trained * work.has_copy
    steps, before = [], 0.0
    if timed and on_cpu:
        seconds = probe.seconds(*_typical(passes), checkpointing=shape.checkpointing)
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


def _typical(passes: Sequence[Batch]) -> tuple[int, int]:
    """Rows and width of a typical pass; the width is the mean over tokens."""
    tokens = sum(batch.tokens for batch in passes)
    width = round(sum(batch.width * batch.tokens for batch in passes) / tokens)
    return max(1, round(tokens / len(passes) / width)), width


def peak_bytes(shape: ModelShape, kept: KeptBytes, step: Step) -> float:
    """Peak bytes of tensors in training, reached in the largest micro-batch of a step."""
    # Gradients replace activations, unless they exist already from the previous micro-batch.
    forward = max(_kept_by(shape, kept, micro_batch) for micro_batch in step)
    gradients = 4 * shape.everything.trained
    most = forward + gradients if len(step) > 1 else max(forward, gradients)
    return shape.weight_bytes + shape.state_bytes + most


def _kept_by(shape: ModelShape, kept: KeptBytes, micro_batch: MicroBatch) -> float:
    """Bytes that are kept at the end of a micro-batch's forward passes."""
    batches = [batch for batch in micro_batch if batch.has_gradient]
    of_layer = [float(kept.layer[1:] @ batch.sizes) for batch in batches]
    # One more layer, for the gradients that exist at a time.
    activations = shape.layers * sum(of_layer) + max(of_layer)
    if shape.checkpointing or shape.offloads:
        inputs = shape.hidden * kept.residual * sum(batch.tokens for batch in batches)
        activations = (0 if shape.offloads else shape.layers * inputs) + 2 * max(of_layer)
    logits = max(batch.trained for batch in micro_batch)
    if kept.around[-1] < shape.vocabulary:  # a head that keeps no logits computes some rows at a time
        logits = min(logits, rows_at_once(training_device(), shape.vocabulary))
    always = shape.layers * kept.layer[0] + kept.around[0] + LOGIT_BYTES * logits * shape.vocabulary
    around = sum(kept.around[1:] @ batch.sizes for batch in batches)
    return float((1.0 if shape.compiled else _HELD) * activations + always + around)


class Probe:
    """Two models of the trained shape, with few layers, on which passes are measured."""

    def __init__(self, trained: TrainedModel, shape: ModelShape, device: str) -> None:
        # The cost of a trained vocabulary grows with its size, and exceeds that of some layers.
        is_scaled = shape.head.trained > 0 and not trained.new_ids
        entries = min(shape.vocabulary, _ENTRIES) if is_scaled else shape.vocabulary
        self._scale = shape.vocabulary / entries
        self._small, self._large = (_Shallow(trained, device, layers, entries) for layers in (1, _DEPTH))

    def kept_bytes(self) -> KeptBytes:
        """Measure the kept bytes with passes of a few dozen tokens."""
        sizes = [[1, *batch.sizes] for batch in _SMALL]
        small, large = (
            np.linalg.solve(sizes, [model.kept(batch) for batch in _SMALL]) for model in (self._small, self._large)
        )
        layer = (large - small) / (_DEPTH - 1)
        around = (small - layer) * [self._scale, 1, 1, self._scale]
        return KeptBytes(layer, around, self._small.model.get_input_embeddings().weight.element_size())

    def seconds(self, rows: int, width: int, *, checkpointing: bool) -> Seconds:
        """Time passes of up to `rows` × `width` tokens for about a second."""
        small, large = self._small, self._large
        if checkpointing:
            for each in (small, large):
                each.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        width = min(width, _LONGEST)
        rows = max(1, min(rows, _TOKENS // width))
        labelled = min(rows * width, _LABELLED)
        one, more, with_head, update = _shortest(
            lambda: small.loss(Batch(rows, width, 1)).backward(),
            lambda: large.loss(Batch(rows, width, 1)).backward(),
            lambda: small.loss(Batch(rows, width, labelled)).backward(),
            large.update,
        )
        # On a busy machine, one layer may take longer than three.
        layer = (more - one) / (_DEPTH - 1) if more > one else more / _DEPTH
        return Seconds(
            rows=rows,
            width=width,
            layer=layer,
            around=self._scale * max(one - layer, 0.0),
            head=self._scale * max(with_head - one, 0.0) / max(labelled - 1, 1),
            update=update / sum(weight.numel() for weight in large.weights),
        )


class _Shallow:
    """A model of a few layers, its head and its optimizer."""

    def __init__(self, trained: TrainedModel, device: str, layers: int, entries: int) -> None:
        self.model = trained.build(device, layers, entries)
        self.weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._head = LabelledHead(self.model)
        self._dtype = trained.dtype
        self._optimizer = torch.optim.AdamW(self.weights, lr=0.0, fused=True)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Loss of a pass that trains its last tokens, shape []."""
        device = self.model.device
        ids = torch.arange(batch.tokens, device=device).view(batch.rows, batch.width) % self.model.config.vocab_size
        labels = torch.full_like(ids, IGNORED_LABEL)
        labels.view(-1)[-batch.trained :] = ids.view(-1)[-batch.trained :]
        autocast = self._dtype is not torch.float32
        with torch.autocast(device.type, self._dtype) if autocast else nullcontext():
            return self._head.token_losses(self.model, ids, labels).sum()

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def kept(self, batch: Batch) -> int:
        """Bytes that autograd keeps of a pass, besides the weights."""
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        found: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage  # kept alive, so that its address is not reused
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self.loss(batch)
        return sum(storage.nbytes() for address, storage in found.items() if address not in weights)


def _shortest(*timed: Callable[[], None]) -> list[float]:
    """Seconds of each call: the shortest of several rounds, because disturbances only add time."""

    def seconds(call: Callable[[], None]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    for call in timed:
        call()  # allocates
    began = time.perf_counter()
    rounds = [[seconds(call) for call in timed]]
    while len(rounds) < _ROUNDS[0] or (len(rounds) < _ROUNDS[-1] and time.perf_counter() - began < _SECONDS):
        rounds.append([seconds(call) for call in timed])
    return [min(times) for times in zip(*rounds, strict=True)]
