"""The reference: log-probabilities that the trained model's are compared with.

`cached` goes through all rows once before training and keeps the numbers in the cache, under a hash of the weights and
of the rows; `live` and `model` compute them when they are asked.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from toolkit.core.cache import cache_dir
from toolkit.core.files import atomic_writer
from toolkit.core.runs.progress import console
from toolkit.core.tokenized import cache_key
from toolkit.dpo.rows import Part, RunRows
from toolkit.dpo.scores import AskedModel, RowScorer, summed

logger = logging.getLogger(__name__)

# Raise it when the same weights and rows come to give other numbers, so that older files are not read.
_FORMAT_VERSION = 1


class Reference(Protocol):
    """Gives log π_ref(y|x) in nats, without gradient."""

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Of the rows of a micro-batch as a collator makes it: shape [rows]."""
        ...

    def of_part(self, part: Part) -> torch.Tensor:
        """Of all rows of one side of a data set: shape [rows]."""
        ...


class LiveReference:
    """Asks a frozen model. It does not change, so the numbers of a whole part are computed once."""

    def __init__(self, frozen: AskedModel, scorer: RowScorer) -> None:
        self._frozen = frozen
        self._scorer = scorer
        self._parts: dict[str, torch.Tensor] = {}

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """log π_ref of the micro-batch's rows."""
        passes = self._scorer.passes(batch["lengths"])
        with self._scorer.accelerator.autocast():
            return self._frozen.logprobs(batch["input_ids"], batch["labels"], passes).float()

    def of_part(self, part: Part) -> torch.Tensor:
        """log π_ref of all rows of the part."""
        if part.name not in self._parts:
            self._parts[part.name] = self._scorer(self._frozen.logprobs, part.rows, f"reference: {part.name}")
        return self._parts[part.name]


class CachedReference:
    """Looks the numbers up that were computed before training."""

    def __init__(self, logprobs: torch.Tensor) -> None:
        """`logprobs`: those of all rows of the run by their numbers, shape [rows]."""
        self._logprobs = logprobs

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """log π_ref of the micro-batch's rows."""
        return self._logprobs[batch["row_numbers"]]

    def of_part(self, part: Part) -> torch.Tensor:
        """log π_ref of all rows of the part."""
        return self._logprobs[part.start : part.start + len(part.rows)]


def cached_reference(frozen: AskedModel, weights_digest: str, rows: RunRows, scorer: RowScorer) -> CachedReference:
    """Go through every row of the run once, or read what was kept of the same weights and the same rows.

    All ranks must call it together; the main process writes.
    """
    accelerator = scorer.accelerator
    computed_with = {
        "reference": _FORMAT_VERSION,
        "weights": weights_digest,
        "mixed_precision": str(accelerator.mixed_precision),
        "device": accelerator.device.type,
    }
    parts = []
    for part in rows:
        file = f"{cache_key({**computed_with, 'rows': part.digest})}.npy"
        parts.append(_kept_or_computed(cache_dir() / "reference" / file, frozen, part, scorer))
    return CachedReference(torch.cat(parts))


def _kept_or_computed(path: Path, frozen: AskedModel, part: Part, scorer: RowScorer) -> torch.Tensor:
    accelerator = scorer.accelerator
    kept = _read(path, len(part.rows))
    # All ranks compute if one of them has to, as where each machine has a disk of its own.
    have = torch.tensor(int(kept is not None), device=accelerator.device)
    everywhere = int(summed(accelerator, have)) == accelerator.num_processes
    if kept is not None and everywhere:
        return kept.to(accelerator.device)
    console.print(f"reference log-probabilities of {part.name}: {len(part.rows):,} rows")
    computed = scorer(frozen.logprobs, part.rows, f"reference: {part.name}")
    if accelerator.is_main_process:
        _write(path, computed)
    return computed


def _read(path: Path, rows: int) -> torch.Tensor | None:
    """What was kept; None where there is nothing, or nothing whole."""
    try:
        kept = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if kept.shape != (rows,) or kept.dtype != np.float32 or not np.isfinite(kept).all():
        logger.warning("%s is damaged and is computed anew", path)
        return None
    return torch.from_numpy(kept)


def _write(path: Path, logprobs: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        np.save(file, logprobs.cpu().numpy(), allow_pickle=False)
