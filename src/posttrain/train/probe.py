"""Measure on this machine what a layer of a model costs: it is built with a few layers, and trained for some passes.

On a CPU the time of a layer is not that of its matrix products, which are the smaller part of it. So it is measured as
a whole: as the difference of two models that differ by some layers, forwards and backwards, by the functions that
training uses. What autograd keeps for the backward pass is counted.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.train.model_shape import ModelShape, TrainedModel

_DEPTH = 3
"""Layers of the larger model; the smaller one has 1."""
_TOKENS = 512
"""Most tokens of a pass that is timed, but for one row that is longer; more take as long for each token."""
_LONGEST = 1024
_ENTRIES = 8192
_LABELLED = 128
_ROUNDS = range(2, 7)
"""Of passes: at least the first, and at most the last, as long as they take less than `_SECONDS`."""
_SECONDS = 1.0
_SMALL = ((1, 32), (2, 32), (1, 64))


@dataclass(frozen=True)
class Kept:
    """Bytes that autograd keeps of a pass: some in any case, some for each token, some for each pair of tokens."""

    always: float
    per_token: float
    per_pair: float

    @classmethod
    def of(cls, kept: Callable[[int, int], float]) -> "Kept":
        """From what `kept(rows, width)` says of three small passes."""
        (_, short), (rows, _), (_, long) = _SMALL
        one, more, longer = (kept(*shape) for shape in _SMALL)
        per_pair = (longer - more) / (long**2 - rows * short**2)
        per_token = (more - one) / short - per_pair * short
        return cls(one - per_token * short - per_pair * short**2, per_token, per_pair)

    def growing(self, rows: int, width: int) -> float:
        """Bytes of a pass of `rows` × `width` tokens, besides those that are always there."""
        return self.per_token * rows * width + self.per_pair * rows * width**2


@dataclass(frozen=True)
class KeptBytes:
    """What a pass keeps for its backward pass, without gradient checkpointing.

    Attributes:
        by_layer: of one layer.
        around: of everything but the layers and the head.
        by_head: for each token that the head computes.
        residual: of each number that goes from layer to layer.
    """

    by_layer: Kept
    around: Kept
    by_head: float
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


class Probe:
    """Two models of a few layers, of the shape that is trained."""

    def __init__(self, trained: TrainedModel, shape: ModelShape, device: str) -> None:
        # A vocabulary that is trained costs the more the larger it is, and more than some layers.
        is_scaled = shape.head.trained > 0 and not trained.new_ids
        entries = min(shape.vocabulary, _ENTRIES) if is_scaled else shape.vocabulary
        self._scale = shape.vocabulary / entries
        self._small, self._large = (
            _Shallow(trained.build(device, layers, entries), trained.dtype) for layers in (1, _DEPTH)
        )

    def kept_bytes(self) -> KeptBytes:
        """Count, by passes of some dozen tokens."""
        small, large = self._small, self._large
        by_layer = Kept.of(lambda *shape: (large.kept(*shape) - small.kept(*shape)) / (_DEPTH - 1))
        around = Kept.of(lambda *shape: small.kept(*shape) - by_layer.always - by_layer.growing(*shape))
        around = replace(around, always=self._scale * around.always)
        by_head = self._scale * (small.kept(1, 32, labelled=32) - small.kept(1, 32, labelled=16)) / 16
        return KeptBytes(by_layer, around, by_head, small.model.get_input_embeddings().weight.element_size())

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
            lambda: small.pass_seconds(rows, width, labelled=1),
            lambda: large.pass_seconds(rows, width, labelled=1),
            lambda: small.pass_seconds(rows, width, labelled=labelled),
            large.update_seconds,
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

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model = model
        self.weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._head = LabelledHead(self.model)
        self._device, self._dtype = model.device.type, dtype
        self._optimizer = torch.optim.AdamW(self.weights, lr=0.0, fused=True)

    def pass_seconds(self, rows: int, width: int, *, labelled: int) -> float:
        """Forwards and backwards; the last `labelled` tokens are trained."""
        began = time.perf_counter()
        self._loss(rows, width, labelled).backward()
        return time.perf_counter() - began

    def update_seconds(self) -> float:
        began = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - began

    def kept(self, rows: int, width: int, *, labelled: int = 1) -> float:
        """Bytes of all that is kept, besides the weights."""
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        found: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage  # held, so that no other gets its address
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self._loss(rows, width, labelled)
        return sum(storage.nbytes() for address, storage in found.items() if address not in weights)

    def _loss(self, rows: int, width: int, labelled: int) -> torch.Tensor:
        ids = torch.arange(rows * width, device=self._device).view(rows, width) % self.model.config.vocab_size
        labels = torch.full_like(ids, IGNORED_LABEL)
        labels.view(-1)[-labelled:] = ids.view(-1)[-labelled:]
        autocast = self._dtype is not torch.float32
        with torch.autocast(self._device, self._dtype) if autocast else nullcontext():
            return self._head.token_losses(self.model, ids, labels).sum()


def _shortest(*timed: Callable[[], float]) -> list[float]:
    """Seconds of each; what disturbs a pass makes it longer, so the shortest of some rounds is the truest."""
    for take in timed:
        take()  # allocates
    began = time.perf_counter()
    rounds = [[take() for take in timed]]
    while len(rounds) < _ROUNDS[0] or (len(rounds) < _ROUNDS[-1] and time.perf_counter() - began < _SECONDS):
        rounds.append([take() for take in timed])
    return [min(times) for times in zip(*rounds, strict=True)]
