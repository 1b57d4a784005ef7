"""Tokenised pairs of answers to one prompt, and labelled answers."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add

import numpy as np
import numpy.typing as npt

from posttrain.data import tokenized
from posttrain.data.curriculum.step_plan import PerRow, RowSizes
from posttrain.data.ledger import Ledger
from posttrain.data.token_arrays import PickedValues
from posttrain.data.tokenized import TokenizedDataset

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _OfBoth:
    """A number for each row, from two."""

    joined: Callable[[int, int], int]
    one: PerRow[int]
    other: PerRow[int]

    def __getitem__(self, row: int) -> int:
        return self.joined(int(self.one[row]), int(self.other[row]))


@dataclass(frozen=True)
class PairedDataset:
    """Pairs: row r of `chosen` is preferred to row r of `rejected`, and both begin with the same prompt.

    Each row is a whole conversation as SFT renders it; its trained flags mark the answer. Both sides have the same
    weights, contents and lines. A row's content is the hash of its prompt, so all pairs of one prompt are on the same
    side of a split. `ledger` counts pairs and the tokens of both sides; `digest` identifies the source's content and
    what was taken from it.
    """

    name: str
    chosen: TokenizedDataset
    rejected: TokenizedDataset
    ledger: Ledger
    digest: str

    def __post_init__(self) -> None:
        if len(self.chosen) != len(self.rejected):
            raise ValueError(f"{len(self.chosen)} chosen rows, but {len(self.rejected)} rejected ones")

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def weights(self) -> npt.NDArray[np.float32] | PickedValues:
        """Factor on each pair's loss, shape [pairs]."""
        return self.chosen.weights

    @property
    def contents(self) -> npt.NDArray[np.uint64]:
        """Hash of each pair's prompt, shape [pairs]."""
        return self.chosen.contents

    def sizes(self) -> RowSizes:
        """The pairs' sizes for the step planner: tokens of both sides together."""
        one, other = self.chosen.sizes(), self.rejected.sizes()
        return RowSizes(
            lengths=_OfBoth(add, one.lengths, other.lengths),
            trained_counts=_OfBoth(add, one.trained_counts, other.trained_counts),
            weights=self.weights,
            padded=_OfBoth(lambda *sides: 2 * max(sides), one.lengths, other.lengths),
        )

    def subset(self, rows: Rows, name: str) -> "PairedDataset":
        """The given pairs as a data set of their own, in the order given."""
        return replace(
            self, name=name, chosen=self.chosen.subset(rows, name), rejected=self.rejected.subset(rows, name)
        )

    def rows_digest(self) -> str:
        """Hash of everything besides the model that determines the log-probabilities of these rows."""
        return _rows_digest([self.chosen, self.rejected])


@dataclass(frozen=True)
class LabelledDataset:
    """Individually labelled good and bad answers, for KTO.

    `desirable` is bool of shape [rows]. The trained flags of `completions` mark the answers; contents are as in
    `PairedDataset`.
    """

    name: str
    completions: TokenizedDataset
    desirable: npt.NDArray[np.bool_]
    ledger: Ledger
    digest: str

    def __post_init__(self) -> None:
        if len(self.completions) != len(self.desirable):
            raise ValueError(f"{len(self.completions)} rows, but {len(self.desirable)} labels")

    def __len__(self) -> int:
        return len(self.completions)

    @classmethod
    def from_sides(
        cls, desirable: TokenizedDataset, undesirable: TokenizedDataset, name: str, ledger: Ledger, digest: str
    ) -> "LabelledDataset":
        """All desirable rows, then all undesirable ones."""
        labels = np.repeat([True, False], [len(desirable), len(undesirable)])
        return cls(name, tokenized.concatenate([desirable, undesirable], name), labels, ledger, digest)

    @classmethod
    def from_pairs(cls, pairs: PairedDataset) -> "LabelledDataset":
        """Two rows per pair: the chosen answer as desirable, the rejected one as undesirable."""
        return cls.from_sides(pairs.chosen, pairs.rejected, pairs.name, pairs.ledger, pairs.digest)

    @property
    def weights(self) -> npt.NDArray[np.float32] | PickedValues:
        """Factor on each row's loss, shape [rows]."""
        return self.completions.weights

    @property
    def contents(self) -> npt.NDArray[np.uint64]:
        """Hash of each row's prompt, shape [rows]."""
        return self.completions.contents

    def sizes(self) -> RowSizes:
        """The rows' sizes for the step planner."""
        return self.completions.sizes()

    def subset(self, rows: Rows, name: str) -> "LabelledDataset":
        """The given rows as a data set of their own, in the order given."""
        return replace(self, name=name, completions=self.completions.subset(rows, name), desirable=self.desirable[rows])

    def rows_digest(self) -> str:
        """Hash of everything besides the model that determines the log-probabilities of these rows."""
        return _rows_digest([self.completions])


PreferenceDataset = PairedDataset | LabelledDataset


def concatenate(parts: Sequence[PreferenceDataset], name: str) -> PreferenceDataset:
    """All rows of `parts`, which must be of one kind, in order; ledger and digest are those of the first part."""
    first = parts[0]
    if isinstance(first, PairedDataset):
        pairs = [part for part in parts if isinstance(part, PairedDataset)]
        chosen = tokenized.concatenate([part.chosen for part in pairs], name)
        rejected = tokenized.concatenate([part.rejected for part in pairs], name)
        return replace(first, name=name, chosen=chosen, rejected=rejected)
    labelled = [part for part in parts if isinstance(part, LabelledDataset)]
    completions = tokenized.concatenate([part.completions for part in labelled], name)
    desirable = np.concatenate([part.desirable for part in labelled])
    return replace(first, name=name, completions=completions, desirable=desirable)


def _rows_digest(sides: Sequence[TokenizedDataset]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for side in sides:
        digest.update(side.token_digest())
    return digest.hexdigest()
