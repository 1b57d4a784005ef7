"""Weights that are exported instead of those that are trained: an average of a run, by an EMA or by the optimizer.

A checkpoint has the exported weights as its model, and the others in a file beside it, so that training goes on from
exactly the weights that it had.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import get_ema_multi_avg_fn

from posttrain.config.sections.training import EMAConfig
from posttrain.errors import ConfigError
from posttrain.models.weights.sharding import copy_whole, whole_tensors
from posttrain.train.optim.optimizer import averages_weights

# Begins with a name of runs/finish.py, so that it is not part of an exported model.
_OTHERS = "optimizer_weights.safetensors"


class Averages:
    """No average: the trained weights are exported."""

    def __init__(self, model: torch.nn.Module) -> None:
        """`model`: its trainable parameters are those that are trained."""
        self.trained = {name: each for name, each in model.named_parameters() if each.requires_grad}

    def update(self, step: int) -> None:
        """Take in the weights after optimizer step `step`, counted from 0."""

    @contextmanager
    def exported(self) -> Iterator[None]:
        """Within the block the model has the weights that are exported."""
        yield

    def save(self, folder: Path | None) -> None:
        """Write the weights that are not the checkpoint's model into the checkpoint.

        All processes call it together; `folder` is None in those that do not write.
        """

    def restore(self, checkpoint: Path) -> None:
        """Restore trained weights and averages; the model has those of the checkpoint."""


class EMA(Averages):
    """An exponential moving average of the trained weights, begun with those after the first step.

    θ̄ = decay·θ̄ + (1 − decay)·θ after each step, as `AveragedModel` of torch with `get_ema_multi_avg_fn`, without its
    copy of the frozen weights.
    """

    def __init__(self, model: torch.nn.Module, config: EMAConfig) -> None:
        super().__init__(model)
        self._average, self._is_exported = get_ema_multi_avg_fn(config.decay), config.export == "ema"
        self.weights = {name: each.detach().clone() for name, each in self.trained.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        if step == 0:
            _copy(self.trained, self.weights)
        else:
            live: list[torch.Tensor] = [*self.trained.values()]
            self._average([*self.weights.values()], live, step)

    @contextmanager
    def exported(self) -> Iterator[None]:
        if self._is_exported:
            _swap(self.trained, self.weights)
        try:
            yield
        finally:
            if self._is_exported:
                _swap(self.trained, self.weights)

    def save(self, folder: Path | None) -> None:
        _write(self.trained if self._is_exported else self.weights, folder)

    def restore(self, checkpoint: Path) -> None:
        _copy(self.trained, self.weights)
        _read(checkpoint, self.trained if self._is_exported else self.weights)


class OwnAverage(Averages):
    """The average of an optimizer whose `eval` puts it into the weights, as those of the package schedulefree.

    Its `train` takes the average out again, but rounds; so the trained weights are kept meanwhile.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any) -> None:
        super().__init__(model)
        self._optimizer = optimizer
        optimizer.train()

    @contextmanager
    def exported(self) -> Iterator[None]:
        kept = {name: each.detach().clone() for name, each in self.trained.items()}
        self._optimizer.eval()
        try:
            yield
        finally:
            self._optimizer.train()
            _copy(kept, self.trained)

    def save(self, folder: Path | None) -> None:
        _write(self.trained, folder)

    def restore(self, checkpoint: Path) -> None:
        _read(checkpoint, self.trained)


def open_averages(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    ema: EMAConfig | None,
    checkpoint: Path | None,
) -> Averages:
    """The averages of a run, as they are in `checkpoint`, whose weights `model` has.

    Raises:
        ConfigError: there would be two averages.
    """
    own = [each for each in optimizers if averages_weights(each)]
    if own and ema is not None:
        raise ConfigError("training.ema: the optimizer averages the weights itself; leave ema out")
    averages = OwnAverage(model, own[0]) if own else Averages(model) if ema is None else EMA(model, ema)
    if checkpoint is not None:
        averages.restore(checkpoint)
    return averages


def _write(weights: dict[str, Any], folder: Path | None) -> None:
    detached = {name: each.detach() for name, each in weights.items()}
    gathered = whole_tensors(detached, keep=folder is not None)
    if folder is not None:
        save_file({name: each.contiguous() for name, each in gathered.items()}, folder / _OTHERS)


def _read(checkpoint: Path, weights: dict[str, Any]) -> None:
    kept = load_file(checkpoint / _OTHERS)
    for name, each in weights.items():
        copy_whole(kept[name], each)


@torch.no_grad()
def _copy(source: dict[str, Any], target: dict[str, Any]) -> None:
    for name, each in target.items():
        each.copy_(source[name])


@torch.no_grad()
def _swap(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Exchange two sets of weights in place, with memory for one tensor besides."""
    for name, each in one.items():
        kept = each.detach().clone()
        each.copy_(other[name])
        other[name].copy_(kept)
