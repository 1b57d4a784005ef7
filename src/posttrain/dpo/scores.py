"""Log-probabilities of answers, with gradient for a micro-batch and without for a data set.

The output head is computed only for the answers' tokens. Rows are padded on the right to the longest row in the same
pass, and a whole data set is scored in order of length, so that there is little padding. Where the model can go without
padding, rows are one sequence, in which the prompt of a pair is computed once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator

from posttrain.base.console import Counting
from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.dpo.passes import Pass, cost_of_a_pass, plan_passes
from posttrain.dpo.run_rows import BothSides
from posttrain.models.backend import LoadedModel
from posttrain.models.frozen import FrozenModel
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.padding import pad_rows
from posttrain.train.parallel.ranks import in_turn, summed

# Per rank; an interruption loses what was computed of the current portion.
_BATCHES_OF_A_PORTION = 16


def answer_logprobs(
    head: LabelledHead,
    model: Any,
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    passes: Sequence[Pass] | None = None,
) -> torch.Tensor:
    """Σ log p over the labelled tokens of each row, in nats: shape [rows], float32.

    Args:
        head: attached to `model`, or to the model that it wraps.
        input_ids: shape [rows, seq], padded on the right.
        labels: shape [rows, seq]; the token that each position has to predict, or -100.
        passes: which rows go through the model together; by default, all in one pass.
    """
    if passes is None:
        passes = plan_passes([labels.shape[1]] * len(labels), cost=None)
    found = []
    for each in passes:
        rows = list(each.rows)
        found.append(head.scores(model, input_ids[rows, : each.width], labels[rows, : each.width])[0])
    order = [row for each in passes for row in each.rows]
    counts = (labels != IGNORED_LABEL).sum(dim=1)[order].tolist()
    of_rows = torch.stack([logprobs.sum() for logprobs in torch.cat(found).split(counts)])
    return of_rows[torch.tensor(order, device=labels.device).argsort()]


class AskedModel:
    """Log-probabilities of answers by a frozen model, without gradient and without dropout."""

    def __init__(self, frozen: FrozenModel, *, packed: bool = False) -> None:
        """`packed`: whether its rows go through it as one sequence."""
        self._frozen, self.packed = frozen, packed
        self._head = LabelledHead(frozen.model, packed=packed)

    @property
    def attention(self) -> str:
        """The attention implementation, by its name in transformers."""
        return str(self._frozen.model.config._attn_implementation)

    def logprobs(
        self, input_ids: torch.Tensor, labels: torch.Tensor, passes: Sequence[Pass] | None = None
    ) -> torch.Tensor:
        """log p of each row, shape [rows], as in `answer_logprobs`."""
        with self._frozen.asked() as model:
            return answer_logprobs(self._head, model, input_ids, labels, passes)


@dataclass(frozen=True)
class RowScorer:
    """Scores both sides of a data set, each rank its share.

    Attributes:
        width: rows of each side that go through the model at once.
        loaded: the trained model, whose dtype every model computes in.
    """

    accelerator: Accelerator
    width: int
    loaded: LoadedModel

    def passes(self, batch: Mapping[str, torch.Tensor], *, at_once: bool) -> list[Pass]:
        """The passes in which the rows of a micro-batch, as `numbered_rows` makes it, go through a model.

        `at_once`: whether to make a single pass.
        """
        cost = None if at_once else cost_of_a_pass(self.accelerator.device.type)
        return plan_passes(batch["lengths"].tolist(), cost)

    def __call__(self, asked: AskedModel, both: BothSides, title: str) -> torch.Tensor:
        """log p of every row, in nats: shape [sides, rows], float32, the same on every rank; shows progress as
        `title`."""
        found = torch.zeros((len(both.sides), len(both)), dtype=torch.float32, device=self.accelerator.device)
        for portion, values in self.portions(asked, both, np.arange(len(both)), title):
            found[:, portion.tolist()] = values
        return found

    def portions(
        self, asked: AskedModel, both: BothSides, wanted: npt.NDArray[np.int64], title: str
    ) -> Iterator[tuple[npt.NDArray[np.int64], torch.Tensor]]:
        """Yield log p of the rows `wanted`, portion by portion: their numbers, shape [some], values [sides, some].

        Short rows come first. Batches are cut from the beginning of that order, so a caller that resumes with the
        missing rows makes the same batches.
        """
        by_length = wanted[both.longest(wanted).argsort(kind="stable")]
        at_once = self.width * _BATCHES_OF_A_PORTION * self.accelerator.num_processes
        with Counting(title, "rows", len(wanted)) as progress:
            for first in range(0, len(by_length), at_once):
                portion = by_length[first : first + at_once]
                yield portion, self._of_portion(asked, both, portion, progress)

    def _of_portion(
        self, asked: AskedModel, both: BothSides, portion: npt.NDArray[np.int64], progress: Counting
    ) -> torch.Tensor:
        device, ranks = self.accelerator.device, self.accelerator.num_processes
        found = torch.zeros((len(both.sides), len(portion)), dtype=torch.float32, device=device)
        for start, counts in in_turn(range(0, len(portion), self.width), in_step=self.loaded.sharded):
            place = slice(start, start + self.width)
            numbers = portion[place].tolist()
            batches = [[side.rows.row(row) for row in numbers] for side in both.sides]
            if asked.packed:  # then both sides of a row share the computation of its prompt
                batches = [list(chain(*batches))]
            scores = [self._of_batch(asked, batch) for batch in batches]
            if counts:
                found[:, place] = torch.cat(scores).view(len(both.sides), -1)
            progress.advance(len(numbers) * ranks)
        # Each rank has zeros for the rows that other ranks computed.
        return summed(self.accelerator, found)

    def _of_batch(self, asked: AskedModel, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> torch.Tensor:
        input_ids, labels = (part.to(self.accelerator.device) for part in pad_rows(rows))
        with self.loaded.autocast():
            return asked.logprobs(input_ids, labels).float()
