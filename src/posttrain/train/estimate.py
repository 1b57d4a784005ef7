"""Estimate time and memory of a run's optimizer steps on this machine, for `--dry-run`.

Memory: weights, gradients and the optimizer's states, and what autograd keeps of the largest micro-batch. Its constants
are fitted to the peaks that benchmarks/cost.py found on Linux, with glibc's malloc; that of compiled layers comes from
`compiled_layers`. Time: on a CPU the time of a layer is not that of its matrix products, which are the smaller part of
it. So it is measured as a whole, as the difference of two models of the run's own shape that differ by some layers, and
scaled with the arithmetic of each pass.
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
from posttrain.train.memory import GIB, available_bytes
from posttrain.train.model_shape import ModelShape, TrainedModel, read_shape

_FLOOR = 0.52 * GIB
"""What a process has besides tensors: torch, transformers and PEFT."""
_COMPILER = 0.1 * GIB
"""The same of torch's compiler."""
_HELD = 1.32
"""Memory over what autograd keeps in it, of layers as they are written: malloc cannot give back what lies between."""
_COMPILED = 0.68
"""Time of a layer through torch.compile over that of the same layer as it is written."""

_DEPTH = 3
"""Layers of the larger model that is measured; the smaller one has 1."""
_TOKENS = 512
"""Most tokens of a pass that is timed, but for one row that is longer; more take as long for each token."""
_LONGEST = 1024
_ENTRIES = 8192
_LABELLED = 128
_ROUNDS = range(2, 7)
"""Of passes: at least the first, and at most the last, as long as they take less than `_SECONDS`."""
_SECONDS = 1.0


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

    @property
    def sizes(self) -> np.ndarray:
        """Tokens, pairs of tokens of one row, and tokens that the head computes: what the bytes kept grow with."""
        return np.array([self.tokens, self.tokens * self.width, self.trained])


MicroBatch = Sequence[Batch]
"""Passes whose gradient is computed together."""
Step = Sequence[MicroBatch]

# From these the bytes kept of any pass are known.
_SMALL = (Batch(1, 32, 1), Batch(2, 32, 1), Batch(1, 64, 1), Batch(1, 32, 17))


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


@dataclass(frozen=True)
class KeptBytes:
    """What a pass keeps for its backward pass, without gradient checkpointing.

    Attributes:
        layer, around: bytes of one layer, and of all else, shape [4]: in any case, and for each of `Batch.sizes`.
        residual: bytes of each number that goes from layer to layer.
    """

    layer: np.ndarray
    around: np.ndarray
    residual: int


@dataclass(frozen=True)
class Seconds:
    """What was timed.

    Attributes:
        rows, width: of the passes.
        layer: of one layer in such a pass, forwards and backwards.
        around: of such a pass without its layers.
        head: for each token that the head computes, forwards and backwards.
        update: of the optimizer, for each trained weight.
    """

    rows: int
    width: int
    layer: float
    around: float
    head: float
    update: float


def estimate(trained: TrainedModel, work: Work, *, timed: bool = True) -> Estimate:
    """Build the shape, measure this machine for a second or two where it is `timed`, and compute.

    Seconds are known on a CPU only, where the constants come from.

    Raises:
        ModelError: the model is of a kind that is not known here.
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
    """Of all layers in a pass.

    A product with a weight is 2 forwards, 2 for the gradient of what is multiplied, and 2 for the weight's own where
    it is trained; checkpointing makes the forward pass twice. Causal attention multiplies half of all pairs of tokens,
    with the keys and with the values: 2 for each pair and each of the heads' numbers forwards, and 4 backwards.
    """
    weights, pairs = shape.in_layers, batch.tokens * batch.width * shape.attention
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


def _typical(passes: Sequence[Batch]) -> tuple[int, int]:
    """Rows and width of the pass that a token is in on average."""
    tokens = sum(batch.tokens for batch in passes)
    width = round(sum(batch.width * batch.tokens for batch in passes) / tokens)
    return max(1, round(tokens / len(passes) / width)), width


def peak_bytes(shape: ModelShape, kept: KeptBytes, step: Step) -> float:
    """The most that training has of tensors, in the largest micro-batch of a step."""
    # Gradients come as activations go, unless they are there from the micro-batch before.
    forward = max(_kept_by(shape, kept, micro_batch) for micro_batch in step)
    gradients = 4 * shape.everything.trained
    most = forward + gradients if len(step) > 1 else max(forward, gradients)
    return shape.weight_bytes + shape.state_bytes + most


def _kept_by(shape: ModelShape, kept: KeptBytes, micro_batch: MicroBatch) -> float:
    """Bytes at the end of the forward passes of a micro-batch."""
    batches = [batch for batch in micro_batch if batch.has_gradient]
    of_layer = [float(kept.layer[1:] @ batch.sizes) for batch in batches]
    # One layer more, for the gradients that there are at a time.
    activations = shape.layers * sum(of_layer) + max(of_layer)
    if shape.checkpointing:
        inputs = shape.hidden * kept.residual * sum(batch.tokens for batch in batches)
        activations = shape.layers * inputs + 2 * max(of_layer)
    logits = max(batch.trained for batch in micro_batch)
    if kept.around[-1] < shape.vocabulary:  # a head that keeps no logits computes some rows at a time
        logits = min(logits, rows_at_once(training_device(), shape.vocabulary))
    always = shape.layers * kept.layer[0] + kept.around[0] + LOGIT_BYTES * logits * shape.vocabulary
    around = sum(kept.around[1:] @ batch.sizes for batch in batches)
    return float((1.0 if shape.compiled else _HELD) * activations + always + around)


class Probe:
    """Two models of a few layers, of the shape that is trained, on which a pass is measured."""

    def __init__(self, trained: TrainedModel, shape: ModelShape, device: str) -> None:
        # A vocabulary that is trained costs the more the larger it is, and more than some layers.
        is_scaled = shape.head.trained > 0 and not trained.new_ids
        entries = min(shape.vocabulary, _ENTRIES) if is_scaled else shape.vocabulary
        self._scale = shape.vocabulary / entries
        self._small, self._large = (_Shallow(trained, device, layers, entries) for layers in (1, _DEPTH))

    def kept_bytes(self) -> KeptBytes:
        """Count, by passes of some dozen tokens."""
        sizes = [[1, *batch.sizes] for batch in _SMALL]
        small, large = (
            np.linalg.solve(sizes, [model.kept(batch) for batch in _SMALL]) for model in (self._small, self._large)
        )
        layer = (large - small) / (_DEPTH - 1)
        around = (small - layer) * [self._scale, 1, 1, self._scale]
        return KeptBytes(layer, around, self._small.model.get_input_embeddings().weight.element_size())

    def seconds(self, rows: int, width: int, *, checkpointing: bool) -> Seconds:
        """Take the time of passes of up to `rows` × `width` tokens, for about a second."""
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
        # On a machine that has much else to do, one layer may take longer than three.
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
        """Of a pass whose last tokens are trained, shape []."""
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
        """Bytes of all that autograd keeps of a pass, besides the weights."""
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        found: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage  # held, so that no other gets its address
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self.loss(batch)
        return sum(storage.nbytes() for address, storage in found.items() if address not in weights)


def _shortest(*timed: Callable[[], None]) -> list[float]:
    """Seconds of each; what disturbs a pass makes it longer, so the shortest of some rounds is the truest."""

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
