"""Measure what passes through a few layers of a model's shape keep and take on this machine."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.model_shape import ModelShape, TrainedModel
from posttrain.train.cost.batches import Batch

_DEPTH = 3  # layers of the larger measured model; the smaller one has 1
MEASURED_LAYERS = _DEPTH + 1
"""Layers that are in memory while a model's shape is measured."""
# Most tokens of a timed pass, unless one row is longer; beyond that, time per token stays the same.
_TOKENS = 512
_LONGEST = 1024
_ENTRIES = 8192
_LABELLED = 128
# Rounds of passes: at least the first number, and at most the last while they take less than `_SECONDS`.
_ROUNDS, _SECONDS = range(2, 7), 1.0
# The bytes that any pass keeps follow from those of these passes.
_SMALL = (Batch(1, 32, 1), Batch(2, 32, 1), Batch(1, 64, 1), Batch(1, 32, 17))


@dataclass(frozen=True)
class KeptBytes:
    """What a forward pass keeps for its backward pass, without gradient checkpointing.

    Attributes:
        layer, around: bytes of one layer, and of everything else: a constant term, and a coefficient for each of
            `Batch.sizes`.
        residual: bytes of each number that is passed from layer to layer.
    """

    layer: tuple[float, float, float, float]
    around: tuple[float, float, float, float]
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
        residual = self._small.model.get_input_embeddings().weight.element_size()
        return KeptBytes(tuple(layer.tolist()), tuple(around.tolist()), residual)

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
