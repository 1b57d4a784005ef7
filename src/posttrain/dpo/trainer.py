"""transformers' Trainer with the losses of preference optimisation.

Import this after the backend has been chosen: unsloth rewrites Trainer when it is imported.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Trainer

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.step_plan import StepPlanner
from posttrain.dpo.batches import numbered_rows
from posttrain.dpo.config.methods import AnyMethod
from posttrain.dpo.datasets import LabelledDataset, PreferenceDataset
from posttrain.dpo.frozen import COPY
from posttrain.dpo.losses import kto_divergence
from posttrain.dpo.measures import Answers, Measures, measure, summary
from posttrain.dpo.passes import Pass
from posttrain.dpo.rows import MISMATCHED, Part, RunRows
from posttrain.dpo.scores import AskedModel, RowScorer, answer_logprobs, gathered
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.train.broken_steps import MicroBatchLosses

if TYPE_CHECKING:
    from posttrain.dpo.reference import Reference


class PreferenceTrainer(Trainer):
    """Trains the batches that a `PreferenceCollator` makes.

    The loss of an optimizer step is Σ weight·loss / Σ weight over all its pairs (for kto: answers) on all ranks: how
    they are cut into micro-batches does not change the gradient.

    Attributes:
        reference: set it before training where the method has one.
        scorer: goes through whole data sets.
    """

    def __init__(
        self,
        *,
        method: AnyMethod,
        rows: RunRows,
        planner: StepPlanner,
        validation: PreferenceDataset | None,
        step_losses: MicroBatchLosses,
        joined: bool,
        **keywords: Any,
    ) -> None:
        """`step_losses` gets the loss of each micro-batch; `joined`: both rows of a pair go through the model as one
        text where that is less work."""
        super().__init__(**keywords)
        # Without it the base class would divide our loss by the accumulation steps once more.
        self.model_accepts_loss_kwargs = True
        self.reference: Reference | None = None
        self.scorer = RowScorer(self.accelerator, self.args.per_device_eval_batch_size)
        self._method = method
        self._rows = rows
        self._planner = planner
        self._validation = validation
        self._joined = joined
        bare: Any = self.accelerator.unwrap_model(self.model)
        self._head = LabelledHead(bare)
        self._policy = AskedModel(bare)
        self._step_losses = step_losses
        self._measured: list[Measures] = []
        self._divergence: tuple[int, torch.Tensor] | None = None

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """This micro-batch's share of the step's loss, in nats per pair (answer)."""
        divergence = self._divergence_of_step() if self._method.unpaired else None
        answers = Answers(
            logprobs=answer_logprobs(self._head, model, inputs["input_ids"], inputs["labels"], self._passes(inputs)),
            tokens=(inputs["labels"] != IGNORED_LABEL).sum(dim=1),
            references=self.reference.of_batch(inputs) if self.reference is not None else None,
            desirable=inputs.get("desirable"),
            divergence=divergence,
        )
        measured = measure(self._method, answers)
        self._measured.append({name: values.detach() for name, values in measured.items()})
        # Gradients are averaged over the ranks, so each rank's share is scaled up by their number.
        share = (measured["loss"] * inputs["row_weights"]).sum() / inputs["loss_weight"].float()
        return self._step_losses.kept(share * self.accelerator.num_processes)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As the base class, with the step's rewards and log-probabilities over all ranks."""
        if "loss" in logs and self._measured:
            logs = {**logs, **self._summary_of_step()}
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss, accuracy, margin, rewards and log-probabilities over all held-out rows, exact whatever the batches and
        ranks."""
        assert self._validation is not None
        found = self.measure_dataset(self._validation, *self._rows.validation())
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def measure_dataset(self, dataset: PreferenceDataset, first: Part, second: Part) -> dict[str, float]:
        """The weighted mean loss over a data set, of which these are the sides, and everything `summary` gives."""
        measures = measure(self._method, self._answers_of(dataset, first, second))
        weights = torch.tensor(dataset.weights, dtype=torch.float64, device=self.args.device)
        loss = (measures["loss"].double() * weights).sum() / weights.sum()
        return {"loss": float(loss), **summary(measures)}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As the base class, without the copy of the adapter that is the reference.

        It is made anew at each start, and transformers would resume from it in place of the trained adapter.
        """
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            shutil.rmtree(Path(output_dir or self.args.output_dir or ".") / COPY, ignore_errors=True)

    def _passes(self, inputs: dict[str, Any]) -> list[Pass]:
        # Ranks wait for each other in every pass of a model that they share, so all must make as many.
        return self.scorer.passes(inputs, joined=self._joined, at_once=self.accelerator.num_processes > 1)

    def _answers_of(self, dataset: PreferenceDataset, first: Part, second: Part) -> Answers:
        device = self.args.device
        if isinstance(dataset, LabelledDataset):
            return Answers(
                logprobs=self._policy_of(first),
                tokens=torch.tensor(dataset.completions.trained_counts(), device=device),
                references=self._reference_of(first),
                desirable=torch.tensor(dataset.desirable, device=device),
                divergence=kto_divergence(self._policy_of(second) - self._reference_of(second)),
            )
        counts = np.concatenate([dataset.chosen.trained_counts(), dataset.rejected.trained_counts()])
        references = None
        if self.reference is not None:
            references = torch.cat([self._reference_of(part) for part in (first, second)])
        logprobs = torch.cat([self._policy_of(part) for part in (first, second)])
        return Answers(logprobs, torch.tensor(counts, device=device), references)

    def _policy_of(self, part: Part) -> torch.Tensor:
        return self.scorer(self._policy.logprobs, part.rows, part.name)

    def _reference_of(self, part: Part) -> torch.Tensor:
        assert self.reference is not None
        return self.reference.of_part(part)

    def _divergence_of_step(self) -> torch.Tensor:
        """kto's z of the optimizer step in progress, from all its rows on all ranks; all ranks ask for it together."""
        step = self.state.global_step
        if self._divergence is None or self._divergence[0] != step:
            ratios = torch.cat([self._mismatched_ratios(draws) for draws in self._micro_batches_of_this_rank(step)])
            self._divergence = step, kto_divergence(gathered(self.accelerator, ratios))
        return self._divergence[1]

    def _mismatched_ratios(self, draws: Sequence[Draw]) -> torch.Tensor:
        assert self.reference is not None
        batch = {
            name: values.to(self.args.device)
            for name, values in numbered_rows(self._rows, draws, sides=(MISMATCHED,)).items()
        }
        with self.accelerator.autocast():
            passes = self.scorer.passes(batch)
            logprobs = self._policy.logprobs(batch["input_ids"], batch["labels"], passes)
        return logprobs - self.reference.of_batch(batch)

    def _micro_batches_of_this_rank(self, step: int) -> list[list[Draw]]:
        plan, width = self._planner.plan(step), self._planner.micro_batch_size
        draws = [plan.draws[slot] for slot in plan.order]
        batches = [draws[first : first + width] for first in range(0, len(draws), width)]
        return batches[self.accelerator.process_index :: self.accelerator.num_processes]

    def _summary_of_step(self) -> dict[str, float]:
        measured, self._measured = self._measured, []
        joined = {name: torch.cat([each[name] for each in measured]) for name in measured[0]}
        return summary({name: gathered(self.accelerator, values) for name, values in joined.items()})
