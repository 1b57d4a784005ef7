"""TRL's SFTTrainer with the toolkit's loss.

Import this after the backend has been chosen: unsloth rewrites SFTTrainer when it is imported.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from trl import SFTTrainer

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.data.tokenized import TokenizedDataset
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.train.batches import pad_rows
from posttrain.train.broken_steps import MicroBatchLosses


class CurriculumSFTTrainer(SFTTrainer):
    """Trains the batches that a `CurriculumCollator` makes.

    The loss of an optimizer step is Σ weight·(−log p) / Σ weight over the trained tokens of all its
    micro-batches on all ranks: how the rows are cut into micro-batches does not change the gradient.
    """

    def __init__(
        self,
        *,
        validation: TokenizedDataset | None,
        end_ids: Collection[int],
        step_losses: MicroBatchLosses,
        **keywords: Any,
    ) -> None:
        """`end_ids`: tokens that end an answer; their loss is told too. `step_losses` gets that of each micro-batch."""
        super().__init__(**keywords)
        # Without it the base class would divide our loss by the accumulation steps once more.
        self.model_accepts_loss_kwargs = True
        self._validation = validation
        self._head = LabelledHead(self.accelerator.unwrap_model(self.model))
        self._step_losses = step_losses
        self._end_ids = torch.tensor(sorted(end_ids), device=self.args.device)
        self._ends: list[torch.Tensor] = []

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """This micro-batch's share of the step's loss, in nats per trained token."""
        labels = inputs["labels"]
        losses = self._head.token_losses(model, inputs["input_ids"], labels)
        weights = inputs["row_weights"].repeat_interleave((labels != IGNORED_LABEL).sum(dim=1))
        is_end = torch.isin(labels[labels != IGNORED_LABEL], self._end_ids)
        self._ends.append(torch.stack([(losses.detach() * is_end).sum(), is_end.sum()]))
        # Gradients are averaged over the ranks, so each rank's share is scaled up by their number.
        share = (losses * weights).sum() / inputs["loss_weight"].float() * self.accelerator.num_processes
        return self._step_losses.kept(share)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As the base class, with the mean loss of the step's end tokens over all ranks, if there are any."""
        if "loss" in logs and self._ends:
            total, count = self.accelerator.reduce(torch.stack(self._ends).sum(dim=0), reduction="sum")
            self._ends = []
            if count:
                logs = {**logs, "end_token_loss": float(total / count)}
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss per trained token over all validation rows, exact whatever the batches and ranks."""
        assert self._validation is not None
        mean = self.mean_loss(self._validation)
        metrics = {f"{metric_key_prefix}_loss": mean}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def mean_loss(self, dataset: TokenizedDataset) -> float:
        """Σ weight·(−log p) / Σ weight over the trained tokens of `dataset`, in nats."""
        model = self.accelerator.unwrap_model(self.model)
        was_training = model.training
        model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        with torch.no_grad(), self.compute_loss_context_manager():
            for rows in self._batches_of_this_rank(dataset):
                sums += self._weighted_sums(model, dataset, rows)
        model.train(was_training)
        total, weight = self.accelerator.reduce(sums, reduction="sum")
        return float(total / weight)

    def _batches_of_this_rank(self, dataset: TokenizedDataset) -> list[Sequence[int]]:
        by_length = dataset.lengths().argsort(kind="stable").tolist()
        width = self.args.per_device_eval_batch_size
        batches = [by_length[first : first + width] for first in range(0, len(by_length), width)]
        return batches[self.accelerator.process_index :: self.accelerator.num_processes]

    def _weighted_sums(self, model: Any, dataset: TokenizedDataset, rows: Sequence[int]) -> torch.Tensor:
        input_ids, labels = (part.to(self.args.device) for part in pad_rows([dataset.row(row) for row in rows]))
        losses = self._head.token_losses(model, input_ids, labels).double()
        row_weights = torch.tensor(dataset.weights[list(rows)], dtype=torch.float64, device=losses.device)
        weights = row_weights.repeat_interleave((labels != IGNORED_LABEL).sum(dim=1))
        return torch.stack([(losses * weights).sum(), weights.sum()])
