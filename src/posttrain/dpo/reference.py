"""The reference: log-probabilities that the trained model's are compared with.

`cached` goes once before training through the rows that training will draw and keeps the numbers in the cache; `live`
and `model` compute them when they are asked.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from posttrain.base.cache import cache_dir
from posttrain.data.tokenized import cache_key
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.config.reference import CachedReference as CachedConfig
from posttrain.dpo.config.reference import SeparateReference
from posttrain.dpo.data import PreferenceData
from posttrain.dpo.frozen import Frozen, start_digest
from posttrain.dpo.kept_scores import KeptScores, complete
from posttrain.dpo.rows import Part, RunRows
from posttrain.dpo.scores import AskedModel, RowScorer
from posttrain.dpo.separate import load_separate
from posttrain.models.backend import LoadedModel
from posttrain.models.frozen import FrozenModel, start_of_training, without_dropout
from posttrain.train.memory import Phase, during

# Raise it when the same weights and rows come to give other numbers, so that older files are not read.
_FORMAT_VERSION = 3


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
            separate = load_separate(config, config.reference)
        frozen = Frozen(AskedModel(FrozenModel(separate)), "reference", start_digest(separate, new_adapter=False))
    else:
        new_adapter = config.lora is not None and config.model.adapter is None
        weights = start_digest(loaded.model, new_adapter=new_adapter)
        asked = start_of_training(
            loaded.model, new_adapter=new_adapter, asked_later=not isinstance(config.reference, CachedConfig)
        )
        frozen = Frozen(
            AskedModel(asked), "model.adapter on model.name" if config.model.adapter else "model.name", weights
        )
    require_weights({f"weights of {frozen.name}": frozen.weights})
    if not isinstance(config.reference, CachedConfig):
        return LiveReference(frozen.asked, scorer)
    drawn = data.curriculum.drawn_rows(data.max_steps)
    with during(Phase.SCORE, "while the reference was computed"):
        return cached_reference(frozen.asked, frozen.weights, rows, drawn, scorer)


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
