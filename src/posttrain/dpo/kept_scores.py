"""Log-probabilities that a reference has given, kept in the cache row by row.

One file for each part: an array of float32 with one number for each row, NaN where it is not computed yet.
"""

import logging
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from posttrain.base.console import console
from posttrain.base.files import atomic_writer
from posttrain.dpo.rows import Part
from posttrain.dpo.scores import AskedModel, RowScorer
from posttrain.train.parallel import summed

logger = logging.getLogger(__name__)

# An interruption that leaves no time to write loses what was computed in so many seconds.
_SECONDS_BETWEEN_WRITES = 30.0


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
        logger.warning("%s is damaged and is computed anew", path)
        return None
    return kept
