"""What completes prompts during training: an engine of `posttrain.inference` that follows the weights."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.inference.hf import HfEngine


class RolloutEngine(Protocol):
    """Completes prompts with the weights of the last `update`."""

    def update(self, step: int) -> None:
        """Take the weights that the training model has now, after `step` optimizer steps; once is enough for each."""
        ...

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """All completions of all requests."""
        ...

    def close(self) -> None:
        """Give back the memory."""
        ...


class TrainingModelEngine:
    """Generates with the training model itself, which so is up to date by nature."""

    def __init__(self, model: Any, engine: HfEngine, compute_dtype: torch.dtype) -> None:
        self._model = model
        self._engine = engine
        self._dtype = compute_dtype

    def update(self, step: int) -> None:
        """Nothing is to be done."""

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """All completions, with dropout off and in the precision that the model is trained in."""
        was_training = self._model.training
        self._model.eval()
        try:
            with self._precision():
                return dict(self._engine.generate(requests, sampling))
        finally:
            self._model.train(was_training)

    def close(self) -> None:
        """Let go of the model, which is the trainer's."""
        self._engine.close()

    def _precision(self) -> AbstractContextManager[Any]:
        device = next(self._model.parameters()).device.type
        return torch.autocast(device, dtype=self._dtype, enabled=self._dtype is not torch.float32)
