"""Generate rollouts with transformers, from the training model itself."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.inference.hf import HfEngine
from posttrain.models.backend import LoadedModel
from posttrain.rl.config import RLConfig


def start(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> "TrainingModelEngine":
    """Wrap the model in `loaded` as an engine; `end_ids` end a completion."""
    return TrainingModelEngine(loaded, end_ids, config.rollout.batch_size)


class TrainingModelEngine:
    """A RolloutEngine that generates with the training weights themselves, so it is always up to date."""

    def __init__(self, loaded: LoadedModel, end_ids: frozenset[int], batch_size: int) -> None:
        self._model: Any = loaded.model
        self._engine = HfEngine(loaded.model, loaded.tokenizer, end_ids, batch_size)
        self._dtype = loaded.compute_dtype

    def update(self, step: int) -> None:
        """Do nothing: the weights are the training model's own."""

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """All completions, with dropout off and in training precision."""
        was_training = self._model.training
        self._model.eval()
        try:
            with self._precision():
                return dict(self._engine.generate(requests, sampling))
        finally:
            self._model.train(was_training)

    def close(self) -> None:
        """Release the model, which belongs to the trainer."""
        self._engine.close()

    def _precision(self) -> AbstractContextManager[Any]:
        device = next(self._model.parameters()).device.type
        return torch.autocast(device, dtype=self._dtype, enabled=self._dtype is not torch.float32)
