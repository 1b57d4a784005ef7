"""The recipe of supervised fine-tuning: batches and cross-entropy for the training loop."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers.integrations import activate_neftune

from posttrain.base.console import telling
from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.data.curriculum.step_plan import StepPlanner
from posttrain.data.tokenized import TokenizedDataset
from posttrain.models.backend import LoadedModel
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.padding import pad_rows
from posttrain.runs.resume import RunCounters
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import SFTData
from posttrain.train.parallel.ranks import in_turn, summed
from posttrain.train.recipe import Measure, PlannedSteps, Recipe, StepResult, place_of, step_facts

Batch = dict[str, torch.Tensor]


class SFTRecipe(Recipe):
    """Trains on conversations.

    The loss of an optimizer step is Σ weight·(−log p) / Σ weight over the trained tokens of all its micro-batches on
    all ranks, so the split of the rows into micro-batches does not change the gradient.
    """

    measure: Measure = "loss"

    def __init__(
        self,
        config: SFTConfig,
        data: SFTData,
        loaded: LoadedModel,
        accelerator: Accelerator,
        end_ids: Collection[int],
    ) -> None:
        """`end_ids`: tokens that end an answer; their loss is also reported separately."""
        self.max_steps = data.max_steps
        self._width = config.training.micro_batch_size
        sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
        size = MicroBatchSize.of(config.training, padding_free=loaded.padding_free)
        planner = StepPlanner(data.curriculum, sizes, size)
        place = place_of(config.data_sources(), data.datasets)
        self._steps = PlannedSteps(planner.plan, place)
        self._data, self._loaded, self._accelerator = data, loaded, accelerator
        self._head = LabelledHead(loaded.model, packed=loaded.padding_free, routers=loaded.routers)
        self._smoothing = config.training.label_smoothing or 0.0
        if config.training.neftune_alpha is not None:
            activate_neftune(loaded.model, config.training.neftune_alpha)
        self._end_ids = torch.tensor(sorted(end_ids), device=accelerator.device)
        self._ends: list[torch.Tensor] = []
        self._loss_weight = 1.0

    def batch(self, step: int) -> list[Batch]:
        """This rank's micro-batches of a step, on its device."""
        self._loss_weight = self._steps.plan(step).loss_weight
        self._ends = []
        return [self._micro_batch(draws) for draws in self._steps.micro_batches(step)]

    def loss(self, model: Any, micro_batch: Batch) -> torch.Tensor:
        """This micro-batch's part of the step's loss, in nats per trained token."""
        labels = micro_batch["labels"]
        losses = self._head.token_losses(model, micro_batch["input_ids"], labels, smoothing=self._smoothing)
        is_end = torch.isin(labels[labels != IGNORED_LABEL], self._end_ids)
        self._ends.append(torch.stack([(losses.detach() * is_end).sum(), is_end.sum()]))
        return (losses * micro_batch["token_weights"]).sum() / self._loss_weight

    def labels(self, micro_batch: Batch) -> torch.Tensor:
        """The tokens that each position has to predict."""
        return micro_batch["labels"]

    def count(self, result: StepResult, counters: RunCounters) -> tuple[dict[str, Any], str]:
        """The step's metrics, with the mean loss of its end tokens over all ranks if there are any."""
        row = self._steps.count(result, counters)
        total, ends = summed(self._accelerator, torch.stack(self._ends).sum(dim=0)).tolist()
        if ends:
            row["end_token_loss"] = total / ends
        return row, f"loss {row['loss']:.4f}  {step_facts(row)}"

    def evaluate(self, model: Any, step: int) -> tuple[dict[str, float], str]:
        """Loss per trained token over all validation rows, exact for any batch size and number of ranks."""
        assert self._data.validation is not None
        loss = self.mean_loss(self._data.validation)
        return {"loss": loss}, f"validation loss {loss:.4f}"

    def mean_loss(self, dataset: TokenizedDataset) -> float:
        """Σ weight·(−log p) / Σ weight over the trained tokens of `dataset`, in nats."""
        model = self._loaded.model
        was_training = model.training
        model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self._accelerator.device)
        with torch.no_grad(), self._loaded.autocast():
            batches = list(in_turn(self._batches(dataset), in_step=self._loaded.sharded))
            for rows, counts in telling(batches, "validating", "batches", lambda: len(batches)):
                weights = [dataset.weights[row] for row in rows]
                batch = self._tensors([dataset.row(row) for row in rows], weights)
                losses = self._head.token_losses(model, batch["input_ids"], batch["labels"]).double()
                by_token = batch["token_weights"].double() * counts
                sums += torch.stack([(losses * by_token).sum(), by_token.sum()])
        model.train(was_training)
        total, weight = summed(self._accelerator, sums).tolist()
        return total / weight

    def trained_in(self, step: int, broken: Sequence[int]) -> str:
        """The rows behind a non-finite loss or gradient of a step."""
        return self._steps.trained_in(step, broken)

    def _micro_batch(self, draws: Sequence[Draw]) -> Batch:
        datasets = self._data.datasets
        rows = [datasets[draw.dataset].row(draw.row) for draw in draws]
        return self._tensors(rows, [datasets[draw.dataset].weights[draw.row] for draw in draws])

    def _tensors(self, rows: Sequence[tuple[np.ndarray, np.ndarray]], weights: Sequence[float]) -> Batch:
        """input_ids and labels [rows, seq], and token_weights [labelled]: for each label the weight of its row."""
        input_ids, labels = pad_rows(rows)
        counts = (labels != IGNORED_LABEL).sum(dim=1)
        token_weights = torch.tensor(weights, dtype=torch.float32).repeat_interleave(counts)
        batch = {"input_ids": input_ids, "labels": labels, "token_weights": token_weights}
        return {name: values.to(self._accelerator.device) for name, values in batch.items()}

    def _batches(self, dataset: TokenizedDataset) -> list[list[int]]:
        by_length = dataset.lengths().argsort(kind="stable").tolist()
        return [by_length[first : first + self._width] for first in range(0, len(by_length), self._width)]
