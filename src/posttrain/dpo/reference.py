"""The reference: log-probabilities with which the trained model's are compared.

`cached` scores all rows that the run needs (those that training will draw, and all held-out ones) once before training
and keeps the log-probabilities in the cache, one file per data set: float32, one value per row of each side, NaN where
not computed yet.
`live` and `model` compute them on demand.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel

from posttrain.base.cache import cache_dir
from posttrain.base.console import console
from posttrain.base.files import atomic_writer
from posttrain.data.tokenized import cache_key
from posttrain.dpo.config.dpo import CachedReference as CachedConfig
from posttrain.dpo.config.dpo import DPOConfig, SeparateReference
from posttrain.dpo.data import PreferenceData
from posttrain.dpo.run_rows import BothSides, RunRows
from posttrain.dpo.scores import AskedModel, RowScorer
from posttrain.errors import ModelError
from posttrain.models.backend import LoadedModel
from posttrain.models.frozen import FrozenModel, start_of_training, without_dropout
from posttrain.models.hf import HfBackend
from posttrain.models.kernels.packed_rows import why_not_packed
from posttrain.models.load import choose_backend
from posttrain.models.weights.checkpoint import TRAINED_ADAPTER
from posttrain.models.weights.sharding import whole
from posttrain.train.memory import Phase, during
from posttrain.train.parallel.ranks import summed

logger = logging.getLogger(__name__)

# Increment when the same weights and rows give other numbers, so that older files are not read.
_FORMAT_VERSION = 5
# A kill that leaves no time to write loses about this many seconds of work.
_SECONDS_BETWEEN_WRITES = 30.0
# Config keys of a model and of an adapter that do not affect the log-probabilities.
_NOT_NUMBERS = ("_name_or_path", "transformers_version", "use_cache", "architectures")
_NOT_NUMBERS_OF_ADAPTERS = ("base_model_name_or_path", "inference_mode", "revision", "peft_version", "auto_mapping")


class Reference(Protocol):
    """Provides log π_ref(y|x) in nats, without gradient."""

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """log π_ref of the rows of a micro-batch, as `numbered_rows` makes it: shape [rows]."""
        ...

    def of_dataset(self, both: BothSides) -> torch.Tensor:
        """log π_ref of all rows of a data set: shape [sides, rows]."""
        ...


def make_reference(
    config: DPOConfig,
    data: PreferenceData,
    loaded: LoadedModel,
    rows: RunRows,
    scorer: RowScorer,
    require_weights: Callable[[Mapping[str, str]], None],
) -> Reference | None:
    """The reference of a run, None if its method has none; call this before attaching anything to the model.

    Args:
        require_weights: called with the digest of the reference's weights, keyed by where the config names them.
    """
    without_dropout(loaded.model)
    if config.reference is None:
        return None
    if isinstance(config.reference, SeparateReference):
        with during(Phase.LOAD, "while the reference was loaded"):
            model = _load_separate(config.reference, chatml=config.chat.template == "chatml", sharded=loaded.sharded)
        packed = loaded.padding_free and why_not_packed(model, loaded.compute_dtype, config.chat.max_length) is None
        weights = start_digest(model, new_adapter=False)
        asked, name = AskedModel(FrozenModel(model), packed=packed), "reference"
    else:
        new_adapter = config.lora is not None and config.model.adapter is None
        weights = start_digest(loaded.model, new_adapter=new_adapter)
        asked_later = not isinstance(config.reference, CachedConfig)
        start = start_of_training(loaded.model, new_adapter=new_adapter, asked_later=asked_later)
        asked = AskedModel(start, packed=loaded.padding_free)
        name = "model.adapter on model.name" if config.model.adapter else "model.name"
    require_weights({f"weights of {name}": weights})
    if not isinstance(config.reference, CachedConfig):
        return LiveReference(asked, scorer)
    drawn = data.curriculum.drawn_rows(data.max_steps)
    with during(Phase.SCORE, "while the reference log-probabilities were computed"):
        return cached_reference(asked, weights, rows, drawn, scorer)


def _load_separate(reference: SeparateReference, *, chatml: bool, sharded: bool) -> Any:
    """Load the separate reference model, with its adapter if it has one.

    Raises:
        ModelError: it cannot be loaded, or not in shares.
    """
    backend = choose_backend(reference)
    if isinstance(backend, HfBackend):
        return backend.load_for_inference(reference, reference.adapter, chatml=chatml, sharded=sharded).model
    if sharded:
        raise ModelError(
            f"reference.backend: parallel.kind: fsdp2 does not go together with {backend.name}; set it to hf"
        )
    return backend.load_for_inference(reference, reference.adapter, chatml=chatml).model


class LiveReference:
    """Scores with a frozen model. The model does not change, so a whole data set is scored only once."""

    def __init__(self, frozen: AskedModel, scorer: RowScorer) -> None:
        self._frozen = frozen
        self._scorer = scorer
        self._datasets: dict[str, torch.Tensor] = {}

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """log π_ref of the micro-batch's rows."""
        passes = self._scorer.passes(batch, at_once=self._frozen.packed or self._scorer.loaded.sharded)
        with self._scorer.loaded.autocast():
            return self._frozen.logprobs(batch["input_ids"], batch["labels"], passes).float()

    def of_dataset(self, both: BothSides) -> torch.Tensor:
        """log π_ref of all rows of the data set."""
        if both.name not in self._datasets:
            self._datasets[both.name] = self._scorer(self._frozen, both, f"reference: {both.name}")
        return self._datasets[both.name]


class CachedReference:
    """Looks up log-probabilities that were computed before training."""

    def __init__(self, logprobs: torch.Tensor) -> None:
        """`logprobs`: of all rows of the run, indexed by row number, shape [rows]; NaN for rows that are not needed."""
        self._logprobs = logprobs

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """log π_ref of the micro-batch's rows."""
        return self._logprobs[batch["row_numbers"]]

    def of_dataset(self, both: BothSides) -> torch.Tensor:
        """log π_ref of all rows of the data set."""
        start = both.sides[0].start
        return self._logprobs[start : start + 2 * len(both)].view(2, -1)


def cached_reference(
    frozen: AskedModel, weights_digest: str, rows: RunRows, drawn: Mapping[str, Sequence[int]], scorer: RowScorer
) -> CachedReference:
    """Score all rows that a run needs, except those already in the cache.

    The cache key is a hash of the weights, the rows, and everything that changes rounding: dtype, device, torch
    version, attention implementation, and how many rows go through the model at once. All ranks must call it together.

    Args:
        drawn: the rows of each data set that training draws; held-out rows are all scored.
    """
    accelerator = scorer.accelerator
    computed_with = {
        "reference": _FORMAT_VERSION,
        "weights": weights_digest,
        "dtype": str(scorer.loaded.compute_dtype),
        "device": _device_name(accelerator.device),
        "torch": torch.__version__,
        "attention": frozen.attention,
        "packed": frozen.packed,
        "rows_at_once": scorer.width,
    }
    found = []
    for both, wanted in rows.asked_for(drawn):
        file = f"{cache_key({**computed_with, 'rows': both.digest})}.npy"
        kept = KeptScores(cache_dir() / "reference" / file, len(both))
        complete(kept, wanted, frozen, both, scorer)
        found.append(torch.from_numpy(kept.values).flatten())
    return CachedReference(torch.cat(found).to(accelerator.device))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def start_digest(model: Any, *, new_adapter: bool) -> str:
    """Hash of everything that determines what `start_of_training` computes: weights, model config, adapter config.

    A new adapter is left out, so that its shape and seed do not matter.
    """
    digest = hashlib.blake2b(digest_size=16)
    described = {"model": _without(model.config.to_dict(), _NOT_NUMBERS)}
    if isinstance(model, PeftModel) and not new_adapter:
        described["adapter"] = _without(model.peft_config[TRAINED_ADAPTER].to_dict(), _NOT_NUMBERS_OF_ADAPTERS)
    digest.update(json.dumps(described, sort_keys=True, default=_in_order).encode())
    state = model.state_dict()
    if new_adapter:
        state = {
            _name_in_base(name): tensor for name, tensor in state.items() if TRAINED_ADAPTER not in name.split(".")
        }
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(whole(tensor.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _name_in_base(name: str) -> str:
    """A weight's name before PEFT wrapped its layer."""
    for wrapper in (".base_layer", ".original_module", ".token_adapter"):
        name = name.replace(wrapper, "")
    return name


def _without(config: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def _in_order(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


class KeptScores:
    """The cached log-probabilities of one data set's rows.

    Attributes:
        values: float32, shape [sides, rows]; NaN where not computed yet.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self._path, shape = path, (2, rows)
        kept = _read(path, shape)
        self.values = np.full(shape, np.nan, dtype=np.float32) if kept is None else kept

    def has(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of `rows` are already computed on both sides: bool, of the shape of `rows`."""
        first, second = ~np.isnan(self.values[:, rows])
        return first & second

    def write(self) -> None:
        """Write the values, merged with what another run has written in the meantime."""
        others = _read(self._path, self.values.shape)
        merged = self.values if others is None else np.where(np.isnan(self.values), others, self.values)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self._path) as file:
            np.save(file, merged, allow_pickle=False)


def complete(
    kept: KeptScores, wanted: npt.NDArray[np.int64], frozen: AskedModel, both: BothSides, scorer: RowScorer
) -> None:
    """Compute those of the rows `wanted` of a data set that are missing.

    All ranks must call it together. The main process writes from time to time, and at the end even after an exception.
    """
    missing = _missing(kept, wanted, scorer)
    if not len(missing):
        return
    others = "" if len(missing) == len(both) else f" of {len(both):,}"
    console.print(f"reference log-probabilities of {both.name}: {len(missing):,} rows{others}")
    written = time.monotonic()
    try:
        for rows, values in scorer.portions(frozen, both, missing, f"reference: {both.name}"):
            kept.values[:, rows] = values.cpu().numpy()
            if scorer.accelerator.is_main_process and time.monotonic() - written > _SECONDS_BETWEEN_WRITES:
                kept.write()
                written = time.monotonic()
    finally:
        if scorer.accelerator.is_main_process:
            kept.write()


def _missing(kept: KeptScores, wanted: npt.NDArray[np.int64], scorer: RowScorer) -> npt.NDArray[np.int64]:
    """The wanted rows that at least one rank lacks, e.g. because each machine has its own disk."""
    accelerator = scorer.accelerator
    have = torch.from_numpy(kept.has(wanted).astype(np.int64)).to(accelerator.device)
    everywhere = summed(accelerator, have) == accelerator.num_processes
    return wanted[~everywhere.cpu().numpy()]


def _read(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.float32] | None:
    """The cached values; None if there is no file or it is damaged."""
    try:
        kept = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if kept.shape != shape or kept.dtype != np.float32 or np.isinf(kept).any():
        logger.warning("%s is damaged and will be recomputed", path)
        return None
    return kept
