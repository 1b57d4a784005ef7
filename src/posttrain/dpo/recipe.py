"""The recipe of preference optimisation: batches, loss and measures for the training loop."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from posttrain.base.processes import process_count
from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.data.curriculum.step_plan import StepPlan, StepPlanner
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import PreferenceData
from posttrain.dpo.datasets import LabelledDataset, PairedDataset, PreferenceDataset
from posttrain.dpo.losses.kto import kto_divergence
from posttrain.dpo.measures import Answers, Measures, measure, summary
from posttrain.dpo.passes import Pass, cost_of_a_pass
from posttrain.dpo.reference import make_reference
from posttrain.dpo.run_rows import (
    MISMATCHED,
    BothSides,
    RunRows,
    micro_batch,
    numbered_rows,
    trained_sides,
    weight_of,
    with_padding,
)
from posttrain.dpo.scores import AskedModel, RowScorer, answer_logprobs
from posttrain.models.backend import LoadedModel
from posttrain.models.frozen import FrozenModel
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.runs.resume import RunCounters
from posttrain.train.memory import Phase, during
from posttrain.train.parallel.ranks import gathered
from posttrain.train.recipe import Measure, PlannedSteps, Recipe, StepResult, place_of, step_facts

Batch = dict[str, torch.Tensor]


class DPORecipe(Recipe):
    """Trains on pairs, or for kto on labelled answers.

    The loss of an optimizer step is Σ weight·loss / Σ weight over all its pairs (answers) on all ranks, so the split
    into micro-batches does not change the gradient.

    Attributes:
        steps: the rows of each optimizer step.
        scorer: scores whole data sets, and plans the passes of micro-batches.
        reference: what the model is compared with; None if the method has no reference.
    """

    measure: Measure = "loss"

    def __init__(
        self,
        config: DPOConfig,
        data: PreferenceData,
        loaded: LoadedModel,
        accelerator: Accelerator,
        require_weights: Callable[[Mapping[str, str]], None] = lambda weights: None,
    ) -> None:
        """Set up the recipe; all ranks together compute the log-probabilities that a cached reference still lacks.

        Args:
            require_weights: called before that with the digest of the reference's weights, by name; it may reject it.
        """
        self.max_steps = data.max_steps
        self.rows = RunRows(data.datasets, data.validation, config.chat.max_length)
        width = config.training.micro_batch_size
        self.scorer = RowScorer(accelerator, width, loaded)
        self.reference = make_reference(config, data, loaded, self.rows, self.scorer, require_weights)
        self._method, self._data, self._accelerator = config.method, data, accelerator
        size = MicroBatchSize.of(config.training, padding_free=loaded.padding_free)
        self.steps = PlannedSteps(self._plans(size), place_of(config.data_sources(), _one_side(data)))
        # Ranks wait for each other in every pass of a shared model, so all must make the same number of passes.
        self._at_once = loaded.padding_free or process_count() > 1
        self._head = LabelledHead(loaded.model, packed=loaded.padding_free, routers=loaded.routers)
        self._policy = AskedModel(FrozenModel(loaded.model), packed=loaded.padding_free)
        self._measured: list[Measures] = []
        self._divergence: torch.Tensor | None = None
        self._loss_weight = 1.0

    def batch(self, step: int) -> list[Batch]:
        """This rank's micro-batches of a step, on its device."""
        draws = self.steps.micro_batches(step)
        self._loss_weight = sum(weight_of(self._data.datasets, draw) for draw in self.steps.plan(step).draws)
        self._measured = []
        if self._method.unpaired:
            ratios = torch.cat([self._mismatched_ratios(each) for each in draws])
            self._divergence = kto_divergence(gathered(self._accelerator, ratios))
        return [self._on_device(micro_batch(self._data.datasets, self.rows, each)) for each in draws]

    def loss(self, model: Any, micro_batch: Batch) -> torch.Tensor:
        """This micro-batch's part of the step's loss, in nats per pair (answer)."""
        input_ids, labels = micro_batch["input_ids"], micro_batch["labels"]
        answers = Answers(
            logprobs=answer_logprobs(self._head, model, input_ids, labels, self._passes(micro_batch)),
            tokens=(labels != IGNORED_LABEL).sum(dim=1),
            references=self._references_of(micro_batch),
            desirable=micro_batch.get("desirable"),
            divergence=self._divergence,
        )
        measured = measure(self._method, answers)
        self._measured.append({name: values.detach() for name, values in measured.items()})
        return (measured["loss"] * micro_batch["row_weights"]).sum() / self._loss_weight

    def labels(self, micro_batch: Batch) -> torch.Tensor:
        """The tokens that each position has to predict."""
        return micro_batch["labels"]

    def count(self, result: StepResult, counters: RunCounters) -> tuple[dict[str, Any], str]:
        """Count the step, with its rewards and log-probabilities over all ranks."""
        joined = {name: torch.cat([each[name] for each in self._measured]) for name in self._measured[0]}
        numbers = summary({name: gathered(self._accelerator, values) for name, values in joined.items()})
        row = {**self.steps.count(result, counters), **numbers}
        accuracy = f"{_accuracy(row)}  " if "reward_accuracy" in row else ""
        return row, f"loss {row['loss']:.4f}  {accuracy}{step_facts(row)}"

    def evaluate(self, model: Any, step: int) -> tuple[dict[str, float], str]:
        """Loss, accuracy, margin, rewards and log-probabilities over all held-out rows.

        They are exact for any batch size and number of ranks.
        """
        assert self._data.validation is not None
        found = self.measure_dataset(self._data.validation, self.rows.validation())
        accuracy = f", {_accuracy(found)}" if "reward_accuracy" in found else ""
        return found, f"validation loss {found['loss']:.4f}{accuracy}"

    def measure_dataset(self, dataset: PreferenceDataset, both: BothSides) -> dict[str, float]:
        """The weighted mean loss over a data set, whose rows are `both`, and all metrics of `summary`."""
        measures = measure(self._method, self._answers_of(dataset, both))
        weights = torch.tensor(dataset.weights, dtype=torch.float64, device=measures["loss"].device)
        loss = (measures["loss"].double() * weights).sum() / weights.sum()
        return {"loss": float(loss), **summary(measures)}

    def trained_in(self, step: int, broken: Sequence[int]) -> str:
        """The rows that gave a step a non-finite loss or gradient."""
        return self.steps.trained_in(step, broken)

    def _plans(self, size: MicroBatchSize) -> Callable[[int], StepPlan]:
        """The planner's plans, counted with the padding of the actual passes."""
        sizes = {name: dataset.sizes() for name, dataset in self._data.datasets.items()}
        planner = StepPlanner(self._data.curriculum, sizes, size)
        if size.padding_free:
            return planner.plan
        sides = trained_sides(labelled=self._method.unpaired)
        cost = cost_of_a_pass(self._accelerator.device.type) if process_count() == 1 else None

        @lru_cache(maxsize=2)
        def plan(step: int) -> StepPlan:
            return with_padding(planner.plan(step), self.rows, sides, cost)

        return plan

    def _passes(self, batch: Batch) -> list[Pass]:
        return self.scorer.passes(batch, at_once=self._at_once)

    def _answers_of(self, dataset: PreferenceDataset, both: BothSides) -> Answers:
        device, logprobs = self._accelerator.device, self.policy_logprobs(both)
        references = None if self.reference is None else self.reference.of_dataset(both)
        if isinstance(dataset, LabelledDataset):
            assert references is not None
            return Answers(
                logprobs=logprobs[0],
                tokens=torch.tensor(dataset.completions.trained_counts(), device=device),
                references=references[0],
                desirable=torch.tensor(dataset.desirable, device=device),
                divergence=kto_divergence(logprobs[MISMATCHED] - references[MISMATCHED]),
            )
        counts = np.concatenate([dataset.chosen.trained_counts(), dataset.rejected.trained_counts()])
        references = None if references is None else references.flatten()
        return Answers(logprobs.flatten(), torch.tensor(counts, device=device), references)

    def policy_logprobs(self, both: BothSides) -> torch.Tensor:
        """log π of all rows of a data set under the current weights: shape [sides, rows]."""
        return self.scorer(self._policy, both, both.name)

    def _references_of(self, micro_batch: Batch) -> torch.Tensor | None:
        if self.reference is None:
            return None
        with during(Phase.SCORE, "while the reference scored the rows of an optimizer step"):
            return self.reference.of_batch(micro_batch)

    def _mismatched_ratios(self, draws: Sequence[Draw]) -> torch.Tensor:
        """log π/π_ref of prompts with other rows' answers, in nats, shape [draws]: kto's estimate of the divergence."""
        assert self.reference is not None
        batch = self._on_device(numbered_rows(self.rows, draws, sides=(MISMATCHED,)))
        with self.scorer.loaded.autocast():
            logprobs = self._policy.logprobs(batch["input_ids"], batch["labels"], self._passes(batch))
        return logprobs - self.reference.of_batch(batch)

    def _on_device(self, batch: Batch) -> Batch:
        return {name: values.to(self._accelerator.device) for name, values in batch.items()}


def _accuracy(numbers: Mapping[str, float]) -> str:
    return f"reward accuracy {numbers['reward_accuracy']:.3f}"


def _one_side(data: PreferenceData) -> dict[str, TokenizedDataset]:
    """One side of each data set, by name; each row has the line of its pair (answer)."""
    return {
        name: dataset.chosen if isinstance(dataset, PairedDataset) else dataset.completions
        for name, dataset in data.datasets.items()
    }
