"""Generate with a loaded model itself: the one in training, or a copy of it that gets its weights from files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from posttrain.errors import ModelError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.hf.engine import HfEngine
from posttrain.models.backend import LoadedModel
from posttrain.models.weights.sharding import whole_tensors, writes

_FILE = "trained.safetensors"


class LoadedModelEngine:
    """A RolloutEngine that generates with transformers, without dropout and in the precision of training."""

    def __init__(self, loaded: LoadedModel, end_ids: frozenset[int], batch_size: int) -> None:
        self._loaded = loaded
        self._engine = HfEngine(loaded.model, loaded.tokenizer, end_ids, batch_size)

    def load(self, weights: Path | None, version: int) -> None:
        """Take over the weights that `write_trained` wrote into the folder `weights`; None changes nothing.

        Raises:
            ModelError: they are not those of this model.
        """
        if weights is not None:
            read_trained(self._loaded.model, weights)

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of all requests; a batch of them is made whole or not at all."""
        with self._as_in_use():
            return self._engine.complete(requests, sampling, finished)

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats, at temperature 1."""
        with self._as_in_use():
            return self._engine.score(ids)

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The model's logits after each of the tokens, in float32, shape [tokens, vocabulary]."""
        with self._as_in_use():
            return self._engine.logits(ids)

    def close(self) -> None:
        """Release the model, which may belong to the trainer."""
        self._engine.close()

    @contextmanager
    def _as_in_use(self) -> Iterator[None]:
        model: Any = self._loaded.model
        was_training = model.training
        model.eval()
        try:
            with self._loaded.autocast():
                yield
        finally:
            model.train(was_training)


def write_trained(model: Any, folder: Path) -> None:
    """Write the parameters that are trained, as they are, into `folder`.

    The processes that share a sharded model call it together, and the main process writes.
    """
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    gathered = whole_tensors(trained, keep=writes(model))
    if writes(model):
        save_file({name: each.contiguous() for name, each in gathered.items()}, folder / _FILE)


@torch.no_grad()
def read_trained(model: Any, folder: Path) -> None:
    """Copy what `write_trained` wrote into a model of the same kind, bit for bit.

    Raises:
        ModelError: the file does not hold exactly the parameters that are trained in this model.
    """
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    with safe_open(folder / _FILE, framework="pt") as file:
        if different := set(file.keys()) ^ set(trained):
            raise ModelError(f"the weights in {folder} are of another model: they differ in {min(different)}")
        for name, each in trained.items():
            each.copy_(file.get_tensor(name))
