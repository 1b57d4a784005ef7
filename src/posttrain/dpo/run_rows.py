"""Micro-batches of preference pairs or labelled answers, as tensors."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.curriculum.step_plan import PerRow, StepPlan
from posttrain.data.tokenized import TokenizedDataset, cache_key
from posttrain.dpo.datasets import LabelledDataset, PairedDataset, PreferenceDataset
from posttrain.dpo.passes import plan_passes
from posttrain.models.padding import pad_rows

# The index of the mismatched rows among the sides of labelled answers.
MISMATCHED = 1


def trained_sides(*, labelled: bool) -> tuple[int, ...]:
    """The indices of the sides that have a gradient: both for pairs, only the answers for labelled answers."""
    return (0,) if labelled else (0, 1)


class Rows(Protocol):
    """Rows of tokens, each with its answer marked."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and trained flags of one row, each of shape [length]; the flags mark the answer."""
        ...

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each row, shape [rows]."""
        ...


class MismatchedRows:
    """Each row's prompt with the answer of another row, from which KTO estimates how far the model has moved.

    The other row is the nearest preceding one with a different prompt (the last row precedes the first), so that in a
    data set of different prompts every answer is used once; TRL does the same within each batch. Here the match is a
    property of the row, so it does not depend on micro-batches, and the reference's log-probabilities can be cached.
    """

    def __init__(self, completions: TokenizedDataset, max_length: int) -> None:
        """`max_length`: a prompt and answer that are longer together are cut at the end."""
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
    """For each row, the nearest preceding one with other content, wrapping around; if all are equal, the one before.

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
class Side:
    """One side of one data set, e.g. its chosen answers.

    Attributes:
        lengths: tokens in each row, shape [rows].
        start: the number of its first row among all rows of the run.
    """

    rows: Rows
    lengths: PerRow[int]
    start: int


@dataclass(frozen=True)
class BothSides:
    """The sides of one data set: a row of one has the prompt of the same row of the other.

    Attributes:
        name: what they are of, e.g. `datasets.a`.
        sides: for pairs the chosen and the rejected answers, for labelled answers these and the mismatched rows; the
            numbers of the second side's rows follow those of the first.
        digest: hash of everything besides the model that determines the rows' log-probabilities.
    """

    name: str
    sides: tuple[Side, Side]
    digest: str

    def __len__(self) -> int:
        """Rows of each side."""
        return len(self.sides[0].rows)

    def longest(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tokens in the longer one of both sides, of the shape of `rows`."""
        first, second = (side.rows.lengths()[rows] for side in self.sides)
        return np.maximum(first, second)


class RunRows:
    """All rows of a run, by data set and side."""

    def __init__(
        self, datasets: Mapping[str, PreferenceDataset], validation: PreferenceDataset | None, max_length: int
    ) -> None:
        named: dict[str, PreferenceDataset] = {f"datasets.{name}": dataset for name, dataset in datasets.items()}
        if validation is not None:
            named["validation"] = validation
        self._datasets: dict[str, BothSides] = {}
        self.count = 0
        for name, dataset in named.items():
            rows, digest = _rows_of(dataset, max_length)
            self._datasets[name] = BothSides(name, (self._add(rows[0]), self._add(rows[1])), digest)

    def training(self, dataset: str) -> BothSides:
        """Both sides of a data set of the curriculum."""
        return self._datasets[f"datasets.{dataset}"]

    def validation(self) -> BothSides:
        """Both sides of the held-out rows."""
        return self._datasets["validation"]

    def __iter__(self) -> Iterator[BothSides]:
        return iter(self._datasets.values())

    def asked_for(self, drawn: Mapping[str, Sequence[int]]) -> Iterator[tuple[BothSides, npt.NDArray[np.int64]]]:
        """Every data set with the rows of it that the run needs: all held-out ones, and those for training in
        `drawn`."""
        for name, both in self._datasets.items():
            rows = range(len(both)) if name == "validation" else drawn.get(name.removeprefix("datasets."), ())
            yield both, np.array(rows, dtype=np.int64)

    def _add(self, rows: Rows) -> Side:
        # For rows on disk, lengths are looked up on demand.
        lengths = rows.sizes().lengths if isinstance(rows, TokenizedDataset) else rows.lengths()
        side = Side(rows, lengths, self.count)
        self.count += len(rows)
        return side


def _rows_of(dataset: PreferenceDataset, max_length: int) -> tuple[tuple[Rows, Rows], str]:
    """The rows of both sides, and their digest."""
    digest = dataset.rows_digest()
    if isinstance(dataset, PairedDataset):
        return (dataset.chosen, dataset.rejected), digest
    mismatched = MismatchedRows(dataset.completions, max_length)
    return (dataset.completions, mismatched), cache_key({"rows": digest, "partners": mismatched.digest()})


def micro_batch(
    datasets: Mapping[str, PreferenceDataset], rows: RunRows, draws: Sequence[Draw]
) -> dict[str, torch.Tensor]:
    """The drawn rows as one micro-batch: 2 B rows of tokens for B pairs, all chosen answers before all rejected ones;
    B rows for B labelled answers.

    Returns:
        The tensors of `numbered_rows`, and row_weights [B]; for labelled answers also desirable [B].
    """
    labelled = isinstance(datasets[draws[0].dataset], LabelledDataset)
    batch = numbered_rows(rows, draws, trained_sides(labelled=labelled))
    batch["row_weights"] = torch.tensor([weight_of(datasets, draw) for draw in draws], dtype=torch.float32)
    if labelled:
        batch["desirable"] = torch.tensor([_is_desirable(datasets[draw.dataset], draw.row) for draw in draws])
    return batch


def weight_of(datasets: Mapping[str, PreferenceDataset], draw: Draw) -> float:
    """Factor on the loss of the drawn pair or answer."""
    return float(datasets[draw.dataset].weights[draw.row])


def _is_desirable(dataset: PreferenceDataset, row: int) -> bool:
    assert isinstance(dataset, LabelledDataset)
    return bool(dataset.desirable[row])


def numbered_rows(rows: RunRows, draws: Sequence[Draw], sides: Sequence[int]) -> dict[str, torch.Tensor]:
    """The drawn rows of each side, one side after another, as tensors.

    Returns:
        input_ids and labels [rows, seq]; lengths [rows], the positions of each row without padding; row_numbers [rows].
    """
    wanted = _wanted(rows, draws, sides)
    tokens = [side.rows.row(row) for side, row in wanted]
    input_ids, labels = pad_rows(tokens)
    return {
        "input_ids": input_ids,
        "labels": labels,
        "lengths": torch.tensor(_input_lengths(wanted)),
        "row_numbers": torch.tensor([side.start + row for side, row in wanted]),
    }


def with_padding(plan: StepPlan, rows: RunRows, sides: Sequence[int], cost: int | None) -> StepPlan:
    """The plan with `computed_tokens` set to `tokens` plus the padding of the actual passes.

    `sides` are the trained ones; `cost` is for `plan_passes`.
    """
    padding = 0
    for slots in plan.micro_batches:
        draws = [plan.draws[slot] for slot in slots]
        lengths = _input_lengths(_wanted(rows, draws, sides))
        padding += sum(each.width - lengths[row] for each in plan_passes(lengths, cost) for row in each.rows)
    return replace(plan, computed_tokens=plan.tokens + padding)


def _wanted(rows: RunRows, draws: Sequence[Draw], sides: Sequence[int]) -> list[tuple[Side, int]]:
    return [(rows.training(draw.dataset).sides[side], draw.row) for side in sides for draw in draws]


def _input_lengths(wanted: Sequence[tuple[Side, int]]) -> list[int]:
    # The last token of a row is only a target, never an input.
    return [int(side.lengths[row]) - 1 for side, row in wanted]
