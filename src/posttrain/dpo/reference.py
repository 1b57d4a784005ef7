"""The reference: log-probabilities that the trained model's are compared with.

`cached` goes once before training through the rows that training will draw and keeps the numbers in the cache, in one
file for each part: float32, one number for each row, NaN where it is not computed yet. `live` and `model` compute them
when they are asked.
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
from posttrain.dpo.run_rows import Part, RunRows
from posttrain.dpo.scores import AskedModel, RowScorer
from posttrain.models.backend import LoadedModel
from posttrain.models.checkpoint import TRAINED_ADAPTER
from posttrain.models.frozen import FrozenModel, start_of_training, without_dropout
from posttrain.models.load import choose_backend
from posttrain.train.memory import Phase, during
from posttrain.train.parallel import summed

logger = logging.getLogger(__name__)

# Raise it when the same weights and rows come to give other numbers, so that older files are not read.
_FORMAT_VERSION = 3
# An interruption that leaves no time to write loses what was computed in so many seconds.
_SECONDS_BETWEEN_WRITES = 30.0
# What the configs of a model and of an adapter hold that does not change their numbers.
_NOT_NUMBERS = ("_name_or_path", "transformers_version", "use_cache", "architectures")
_NOT_NUMBERS_OF_ADAPTERS = ("base_model_name_or_path", "inference_mode", "revision", "peft_version", "auto_mapping")


class Reference(Protocol):
    """Gives log π_ref(y|x) in nats, without gradient."""

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Of the rows of a micro-batch as a collator makes it: shape [rows]."""
        ...

    def of_part(self, part: Part) -> torch.Tensor:
        """Of all rows of one side of a data set: shape [rows]."""
        ...


def make_reference(
    config: DPOConfig,
    data: PreferenceData,
    loaded: LoadedModel,
    rows: RunRows,
    scorer: RowScorer,
    require_weights: Callable[[Mapping[str, str]], None],
) -> Reference | None:
    """The reference of a run, None where its method has none; call it before anything is attached to the model.

    Args:
        require_weights: called with the digest of the weights that it stands on, by where the config names them.
    """
    without_dropout(loaded.model)
    if config.reference is None:
        return None
    if isinstance(config.reference, SeparateReference):
        with during(Phase.LOAD, "while the reference was loaded"):
            model = _load_separate(config.reference, chatml=config.chat.template == "chatml")
        asked, name, weights = AskedModel(FrozenModel(model)), "reference", start_digest(model, new_adapter=False)
    else:
        new_adapter = config.lora is not None and config.model.adapter is None
        weights = start_digest(loaded.model, new_adapter=new_adapter)
        asked_later = not isinstance(config.reference, CachedConfig)
        asked = AskedModel(start_of_training(loaded.model, new_adapter=new_adapter, asked_later=asked_later))
        name = "model.adapter on model.name" if config.model.adapter else "model.name"
    require_weights({f"weights of {name}": weights})
    if not isinstance(config.reference, CachedConfig):
        return LiveReference(asked, scorer)
    drawn = data.curriculum.drawn_rows(data.max_steps)
    with during(Phase.SCORE, "while the reference was computed"):
        return cached_reference(asked, weights, rows, drawn, scorer)


def _load_separate(reference: SeparateReference, *, chatml: bool) -> Any:
    """A model of its own, with its adapter if it has one; ModelError where it cannot be loaded."""
    return choose_backend(reference).load_for_inference(reference, reference.adapter, chatml=chatml).model


class LiveReference:
    """Asks a frozen model. It does not change, so the numbers of a whole part are computed once."""

    def __init__(self, frozen: AskedModel, scorer: RowScorer) -> None:
        self._frozen = frozen
        self._scorer = scorer
        self._parts: dict[str, torch.Tensor] = {}

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """log π_ref of the micro-batch's rows."""
        passes = self._scorer.passes(batch, joined="shared" in batch and self._frozen.takes_joined_rows)
        with self._scorer.loaded.autocast():
            return self._frozen.logprobs(batch["input_ids"], batch["labels"], passes).float()

    def of_part(self, part: Part) -> torch.Tensor:
        """log π_ref of all rows of the part."""
        if part.name not in self._parts:
            self._parts[part.name] = self._scorer(self._frozen.logprobs, part.rows, f"reference: {part.name}")
        return self._parts[part.name]


class CachedReference:
    """Looks the numbers up that were computed before training."""

    def __init__(self, logprobs: torch.Tensor) -> None:
        """`logprobs`: those of all rows of the run by their numbers, shape [rows]; NaN where nothing asks for them."""
        self._logprobs = logprobs

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """log π_ref of the micro-batch's rows."""
        return self._logprobs[batch["row_numbers"]]

    def of_part(self, part: Part) -> torch.Tensor:
        """log π_ref of all rows of the part."""
        return self._logprobs[part.start : part.start + len(part.rows)]


def cached_reference(
    frozen: AskedModel, weights_digest: str, rows: RunRows, drawn: Mapping[str, Sequence[int]], scorer: RowScorer
) -> CachedReference:
    """Go once through the rows that a run asks for, but for those of which the numbers were kept.

    They are kept under a hash of the weights and of the rows, and of all that changes how numbers are rounded: what
    they are computed in and by, and how many rows go through the model at once. All ranks must call it together.

    Args:
        drawn: the rows of each data set that training draws; of held-out rows all are asked for.
    """
    accelerator = scorer.accelerator
    computed_with = {
        "reference": _FORMAT_VERSION,
        "weights": weights_digest,
        "dtype": str(scorer.loaded.compute_dtype),
        "device": _device_name(accelerator.device),
        "torch": torch.__version__,
        "attention": frozen.attention,
        "rows_at_once": scorer.width,
    }
    parts = []
    for part, wanted in rows.asked_for(drawn):
        file = f"{cache_key({**computed_with, 'rows': part.digest})}.npy"
        kept = KeptScores(cache_dir() / "reference" / file, len(part.rows))
        complete(kept, wanted, frozen, part, scorer)
        parts.append(torch.from_numpy(kept.values))
    return CachedReference(torch.cat(parts).to(accelerator.device))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def start_digest(model: Any, *, new_adapter: bool) -> str:
    """Hash of all that decides what `start_of_training` computes: the weights themselves, and the model's config.

    The weights of a new adapter are left out, so that its shape and seed do not matter.
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
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _name_in_base(name: str) -> str:
    """The name of a weight before PEFT wrapped its layer."""
    for wrapper in (".base_layer", ".original_module", ".token_adapter"):
        name = name.replace(wrapper, "")
    return name


def _without(config: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def _in_order(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


class KeptScores:
    """The numbers of one part's rows.

    Attributes:
        values: float32, shape [rows].
    """

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        kept = _read(path, rows)
        self.values = np.full(rows, np.nan, dtype=np.float32) if kept is None else kept

    def has(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the rows are there, of the shape of `rows`."""
        return ~np.isnan(self.values[rows])

    def write(self) -> None:
        """Write what is there, with what another run has computed in the meantime."""
        others = _read(self._path, len(self.values))
        merged = self.values if others is None else np.where(np.isnan(self.values), others, self.values)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self._path) as file:
            np.save(file, merged, allow_pickle=False)


def complete(
    kept: KeptScores, wanted: npt.NDArray[np.int64], frozen: AskedModel, part: Part, scorer: RowScorer
) -> None:
    """Compute those of the rows `wanted` of a part, by their numbers, that are not there yet.

    All ranks must call it together; the main process writes, every now and then and in the end, whatever ends it.
    """
    missing = _missing(kept, wanted, scorer)
    if not len(missing):
        return
    others = "" if len(missing) == len(part.rows) else f" of {len(part.rows):,}"
    console.print(f"reference log-probabilities of {part.name}: {len(missing):,} rows{others}")
    written = time.monotonic()
    try:
        for rows, values in scorer.portions(frozen.logprobs, part.rows, missing, f"reference: {part.name}"):
            kept.values[rows] = values.cpu().numpy()
            if scorer.accelerator.is_main_process and time.monotonic() - written > _SECONDS_BETWEEN_WRITES:
                kept.write()
                written = time.monotonic()
    finally:
        if scorer.accelerator.is_main_process:
            kept.write()


def _missing(kept: KeptScores, wanted: npt.NDArray[np.int64], scorer: RowScorer) -> npt.NDArray[np.int64]:
    """The wanted rows that one of the ranks does not have, as where each machine has a disk of its own."""
    accelerator = scorer.accelerator
    have = torch.from_numpy(kept.has(wanted).astype(np.int64)).to(accelerator.device)
    everywhere = summed(accelerator, have) == accelerator.num_processes
    return wanted[~everywhere.cpu().numpy()]


def _read(path: Path, rows: int) -> npt.NDArray[np.float32] | None:
    """What was kept; None where there is nothing, or nothing whole."""
    try:
        kept = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if kept.shape != (rows,) or kept.dtype != np.float32 or np.isinf(kept).any():
        logger.warning("%s is damaged and is computed again", path)
        return None
    return kept
