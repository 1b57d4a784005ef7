"""Data sets as flat arrays of tokens, kept in a cache that is addressed by content.

A data set is read, rendered, tokenised and truncated once for each (data, columns, template, tokenizer, length);
a second start maps the arrays from disk. The cache's key says all of that, so nothing stale can be read.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from toolkit.core.files import atomic_folder
from toolkit.core.ledger import Ledger
from toolkit.core.masks import TokenRow
from toolkit.core.step_plan import RowSizes

# Raise it when the same inputs come to give other arrays, so that older caches are not read.
FORMAT_VERSION = 1

_ARRAYS = ("ids", "trained", "offsets", "lines", "weights", "contents")


@dataclass(frozen=True)
class TokenizedDataset:
    """Rows of tokens. Row r is `ids[offsets[r]:offsets[r + 1]]`.

    Attributes:
        ids: int32, shape [tokens].
        trained: bool, shape [tokens]; which tokens carry loss.
        offsets: int64, shape [rows + 1].
        lines: int64, shape [rows]; the line of the source file that the row came from.
        weights: float32, shape [rows]; factor on the row's loss.
        contents: uint64, shape [rows]; hash of the conversation, by which rows are split.
    """

    name: str
    ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    contents: npt.NDArray[np.uint64]
    ledger: Ledger
    digest: str

    def __len__(self) -> int:
        return len(self.lines)

    def row(self, index: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Token ids and trained flags of one row, each of shape [length]."""
        span = slice(self.offsets[index], self.offsets[index + 1])
        return self.ids[span], self.trained[span]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each row, shape [rows]."""
        return np.diff(self.offsets)

    def trained_counts(self) -> npt.NDArray[np.int64]:
        """Trained tokens in each row, shape [rows]."""
        running = np.concatenate([[0], np.cumsum(self.trained, dtype=np.int64)])
        return running[self.offsets[1:]] - running[self.offsets[:-1]]

    def sizes(self) -> RowSizes:
        """The rows' numbers, as the step planner wants them."""
        return RowSizes(self.lengths().tolist(), self.trained_counts().tolist(), self.weights.astype(float).tolist())

    def subset(self, rows: npt.NDArray[np.int64], name: str) -> "TokenizedDataset":
        """The given rows as a data set of their own, in the order given."""
        lengths = self.lengths()[rows]
        # positions: for each new token, where it stands in the old arrays.
        starts = np.repeat(self.offsets[rows] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
        positions = starts + np.arange(lengths.sum())
        return replace(
            self,
            name=name,
            ids=self.ids[positions],
            trained=self.trained[positions],
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            lines=self.lines[rows],
            weights=self.weights[rows],
            contents=self.contents[rows],
        )


def concatenate(parts: list[TokenizedDataset], name: str) -> TokenizedDataset:
    """All rows of `parts`, one after another; the ledger and digest are those of the first part."""
    ends = np.concatenate([[0], np.cumsum([part.offsets[-1] for part in parts])])
    offsets = [part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    joined = {key: np.concatenate([getattr(part, key) for part in parts]) for key in _ARRAYS if key != "offsets"}
    return replace(parts[0], name=name, offsets=np.concatenate([[0], *offsets]), **joined)


def from_rows(
    name: str,
    rows: Sequence[TokenRow],
    records: Sequence[tuple[int, float, int]],
    ledger: Ledger,
    digest: str,
) -> TokenizedDataset:
    """The rows as flat arrays; `records` has the line, the weight and the content hash of each."""
    lines, weights, contents = zip(*records, strict=True) if records else ((), (), ())
    return TokenizedDataset(
        name=name,
        ids=_flat([row.ids for row in rows], np.int32),
        trained=_flat([row.trained for row in rows], np.bool_),
        offsets=np.cumsum([0, *(len(row.ids) for row in rows)], dtype=np.int64),
        lines=np.array(lines, dtype=np.int64),
        weights=np.array(weights, dtype=np.float32),
        contents=np.array(contents, dtype=np.uint64),
        ledger=ledger,
        digest=digest,
    )


def _flat(parts: Sequence[list[int] | list[bool]], dtype: type) -> np.ndarray:
    return np.concatenate([np.array(part, dtype=dtype) for part in parts]) if parts else np.zeros(0, dtype=dtype)


def cache_key(parts: Mapping[str, object]) -> str:
    """Hash of everything that the arrays depend on, as 32 hex digits."""
    described = json.dumps({"format": FORMAT_VERSION, **parts}, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def save(dataset: TokenizedDataset, folder: Path) -> None:
    """Write the arrays and the ledger to `folder`, all or nothing."""
    with atomic_folder(folder, lambda there: load(there, dataset.name) is not None) as aside:
        for key in _ARRAYS:
            np.save(aside / f"{key}.npy", getattr(dataset, key), allow_pickle=False)
        described = {"ledger": dataset.ledger.as_dict(), "digest": dataset.digest}
        (aside / "dataset.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")


def load(folder: Path, name: str) -> TokenizedDataset | None:
    """The data set in `folder`, mapped from disk; None where there is none, or where it is damaged."""
    try:
        described = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="r", allow_pickle=False) for key in _ARRAYS}
        ledger = Ledger(**{**described["ledger"], "name": name})
    except (OSError, ValueError, EOFError, LookupError, TypeError):
        return None
    return TokenizedDataset(name=name, ledger=ledger, digest=described["digest"], **arrays)
