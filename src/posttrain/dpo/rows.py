"""Every row whose log-probability a run asks for, under one number each."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from posttrain.data.step_plan import PerRow
from posttrain.data.tokenized import TokenizedDataset, cache_key
from posttrain.dpo.datasets import PairedDataset, PreferenceDataset

# The place of the mismatched rows among the sides of labelled answers.
MISMATCHED = 1


def trained_sides(*, labelled: bool) -> tuple[int, ...]:
    """The sides of a data set that have a gradient: both of pairs, and of labelled answers the answers."""
    return (0,) if labelled else (0, 1)


class Rows(Protocol):
    """Rows of tokens, of which some are an answer."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and trained flags of one row, each of shape [length]; the flags mark the answer."""
        ...

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each row, shape [rows]."""
        ...


class MismatchedRows:
    """Each row's prompt with the answer of another row, by which KTO estimates how far the model has moved.

    The other row is the nearest one before it whose prompt is another (before the first row comes the last), so that
    in a data set of different prompts every answer is taken once: TRL does the same inside each batch. Here it is a
    property of the row, so that it does not depend on micro-batches, and the reference's numbers can be kept.
    """

    def __init__(self, completions: TokenizedDataset, max_length: int) -> None:
        """`max_length`: a prompt and an answer that are longer together are cut at their end."""
        self._completions = completions
        self._partners = partners(completions.contents)
        self._prompts = completions.prompt_lengths()
        answers = completions.lengths() - self._prompts
        self._lengths = np.minimum(self._prompts + answers[self._partners], max_length)

    def __len__(self) -> int:
        return len(self._completions)

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and trained flags of one row."""
        partner, prompt = self._partners[index], self._prompts[index]
        ids, trained = self._completions.row(index)
        other_ids, other_trained = self._completions.row(int(partner))
        answer = slice(self._prompts[partner], None)
        end = self._lengths[index]
        return (
            np.concatenate([ids[:prompt], other_ids[answer]])[:end],
            np.concatenate([trained[:prompt], other_trained[answer]])[:end],
        )

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each row, shape [rows]."""
        return self._lengths

    def digest(self) -> str:
        """Hash of which prompt goes with which answer, and where they are cut."""
        described = np.concatenate([self._partners, self._lengths]).astype(np.int64)
        return hashlib.blake2b(described.tobytes(), digest_size=16).hexdigest()


def partners(contents: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """For each row the nearest one before it of another content, around the end; where all are equal, the one before.

    `contents` and the result are of shape [rows].
    """
    count = len(contents)
    rows = np.arange(count)
    before = (rows - 1) % count
    starts = contents != contents[before]
    if not starts.any():
        return before
    # The start of the run of equal contents that a row is in; rows before the first start are in the last run.
    latest = np.maximum.accumulate(np.where(starts, rows, -1))
    return before[np.where(latest < 0, latest[-1], latest)]


@dataclass(frozen=True)
class Part:
    """One side of one data set: the chosen answers of `datasets.a`, say.

    Attributes:
        lengths: tokens in each row, shape [rows].
        start: the number of its first row among all rows of the run.
        digest: hash of all that a model's log-probabilities of the rows depend on, besides the model.
    """

    name: str
    rows: Rows
    lengths: PerRow[int]
    start: int
    digest: str


class RunRows:
    """All rows of a run, by data set and side. The sides of pairs are chosen and rejected; of labelled answers, the
    answers and the mismatched ones."""

    def __init__(
        self, datasets: Mapping[str, PreferenceDataset], validation: PreferenceDataset | None, max_length: int
    ) -> None:
        named: dict[str, PreferenceDataset] = {f"datasets.{name}": dataset for name, dataset in datasets.items()}
        if validation is not None:
            named["validation"] = validation
        self._parts: dict[str, tuple[Part, Part]] = {}
        self.count = 0
        for name, dataset in named.items():
            first, second = (self._add(name, *side) for side in _sides(dataset, max_length))
            self._parts[name] = first, second

    def training(self, dataset: str) -> tuple[Part, Part]:
        """Both sides of a data set of the curriculum."""
        return self._parts[f"datasets.{dataset}"]

    def validation(self) -> tuple[Part, Part]:
        """Both sides of the held-out rows."""
        return self._parts["validation"]

    def __iter__(self) -> Iterator[Part]:
        for sides in self._parts.values():
            yield from sides

    def asked_for(self, drawn: Mapping[str, Sequence[int]]) -> Iterator[tuple[Part, npt.NDArray[np.int64]]]:
        """Every part with the numbers of its rows that a run asks for: all held-out ones, and of the training data
        sets those in `drawn`."""
        for name, sides in self._parts.items():
            for part in sides:
                rows = range(len(part.rows)) if name == "validation" else drawn.get(name.removeprefix("datasets."), ())
                yield part, np.array(rows, dtype=np.int64)

    def _add(self, name: str, side: str, rows: Rows, digest: str) -> Part:
        # Of rows on disk the lengths are looked up as they are asked for.
        lengths = rows.sizes().lengths if isinstance(rows, TokenizedDataset) else rows.lengths()
        part = Part(f"{name}, {side}", rows, lengths, self.count, digest)
        self.count += len(rows)
        return part


def _sides(dataset: PreferenceDataset, max_length: int) -> list[tuple[str, Rows, str]]:
    """Name, rows and digest of both sides."""
    digest = dataset.rows_digest()
    if isinstance(dataset, PairedDataset):
        sides: dict[str, Rows] = {"chosen": dataset.chosen, "rejected": dataset.rejected}
        return [(side, rows, cache_key({"rows": digest, "side": side})) for side, rows in sides.items()]
    mismatched = MismatchedRows(dataset.completions, max_length)
    key = {"rows": digest, "side": "mismatched", "partners": mismatched.digest()}
    return [
        ("answers", dataset.completions, cache_key({"rows": digest, "side": "answers"})),
        ("mismatched", mismatched, cache_key(key)),
    ]
