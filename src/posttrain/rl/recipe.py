"""The reinforcement-learning recipe: rollouts and policy loss for the training loop."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from posttrain.base.processes import process_count, process_rank
from posttrain.base.text import first_of
from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.models.backend import LoadedModel
from posttrain.models.frozen import FrozenModel, start_of_training, without_dropout
from posttrain.rl.config import RLConfig
from posttrain.rl.generation import CompletionScorer, Cutter, Generation, MicroBatch
from posttrain.rl.losses import LossInputs, entropy_threshold
from posttrain.rl.objective import Means, PolicyObjective, with_effective_share
from posttrain.rl.presets import resolve_objective
from posttrain.rl.report import (
    Transcript,
    ages,
    carried,
    generation_metrics,
    step_facts,
)
from posttrain.rl.rollout.choice import Choice, by_place, choose, in_order, require_same_verdicts
from posttrain.rl.rollout.collect.collected import Collected
from posttrain.rl.rollout.collect.segments import NOTHING, parts_of
from posttrain.rl.rollout.evaluation import Evaluator
from posttrain.rl.rollout.grading import on_all_ranks
from posttrain.rl.rollout.pipeline import RolloutPipeline
from posttrain.rl.rollout.replay.keeper import RolloutKeeper
from posttrain.rl.rollout.replay.masked import MaskedShares
from posttrain.rl.rollout.replay.store import GroupKey
from posttrain.rl.rollout.store.recorded_rollouts import RecordedRollouts
from posttrain.rl.schedule import prompt_hash_after
from posttrain.runs.resume import RunCounters
from posttrain.train.parallel.ranks import gathered
from posttrain.train.recipe import Measure, Recipe, StepResult, UnavailableError
from posttrain.train.signals import StopRequest

SECONDS = ("generate", "grade", "sync", "wait", "engine_idle")
"""Activities in a step's `seconds`: the step is `sync` + `wait` + `learn`; generation and grading may lie in earlier
steps."""


class RLRecipe(Recipe):
    """Trains the model on its own completions, according to their rewards.

    Attributes:
        loaded: the model being trained.
        generation: the generation it is trained on; None before the first.
        without_signal: generations in a row, up to this one, of which the filters rejected every group.
    """

    measure: Measure = "reward"

    def __init__(
        self,
        config: RLConfig,
        loaded: LoadedModel,
        accelerator: Accelerator,
        pipeline: RolloutPipeline | RecordedRollouts,
        evaluator: Evaluator | None,
        transcript: Transcript,
        keeper: RolloutKeeper,
    ) -> None:
        without_dropout(loaded.model)  # dropout would make the new policy differ from the old one and the engine
        rollout, training = config.rollout, config.training
        objective = resolve_objective(config.algorithm, config.objective)
        tokenizer: Any = loaded.tokenizer
        self.max_steps = pipeline.max_steps
        self.generation: Generation | None = None
        self._rollout, self.without_signal = rollout, 0
        self._chooses = bool(rollout.filters) or keeper.is_on
        self._objective = PolicyObjective(objective, rollout.correction)
        self._schedule, self._pipeline, self._evaluator = pipeline.schedule, pipeline, evaluator
        self.loaded, self._accelerator, self._transcript = loaded, accelerator, transcript
        self._keeper, self._masked = keeper, MaskedShares(self._schedule.prompts_per_step)
        self._cutter = Cutter(
            self._objective,
            pipeline.schedule,
            MicroBatchSize.of(training, padding_free=loaded.padding_free),
            process_rank(),
            process_count(),
            rollout.longest,
            tokenizer.pad_token_id,
            accelerator.device,
        )
        self._reference = self._frozen_start(config) if objective.beta else None
        packed = loaded.padding_free
        self._scorer = CompletionScorer(loaded.model, training.micro_batch_size, packed=packed, routers=loaded.routers)
        self._reference_scorer = self._scorer
        if self._reference is not None and self._reference.model is not loaded.model:
            self._reference_scorer = CompletionScorer(self._reference.model, training.micro_batch_size, packed=packed)
        self._means = Means()
        self._seconds: dict[str, float] = {}

    def batch(self, step: int) -> list[MicroBatch]:
        """This rank's micro-batches of a step; if the step begins a generation, collects it first.

        Raises:
            UnavailableError: the dataserver gives no prompts, or no rewards and training may not go on without them.
        """
        self._means = Means()
        self._masked = MaskedShares(self._schedule.prompts_per_step)
        self._seconds = {}
        if self._schedule.starts_generation(step):
            self._begin(step, self._schedule.generation_of(step))
        assert self.generation is not None
        micro_batches = self.generation.parts[self._schedule.part_of(step)]
        if self._objective.parts.top_entropy_quantile < 1:
            self._set_entropy_threshold(micro_batches)
        return micro_batches

    def loss(self, model: Any, micro_batch: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the step's loss."""
        logprobs, entropies = self._scorer(model, micro_batch.completions)
        if micro_batch.old_logprobs is None:
            micro_batch.old_logprobs = logprobs.detach()
        inputs = LossInputs(
            logprobs,
            micro_batch.old_logprobs,
            micro_batch.advantages,
            micro_batch.mask,
            micro_batch.reference_logprobs,
            micro_batch.sampling_logprobs,
            micro_batch.remembered,
        )
        if self._choice.replayed:
            slots = [row // self._schedule.generations for row in micro_batch.rows]
            self._masked.add(slots, self._objective.beyond_limits(inputs), inputs.mask)
        losses = self._objective.token_losses(inputs, entropies, micro_batch.threshold, self._means)
        return (losses * micro_batch.weights).sum()

    def labels(self, micro_batch: MicroBatch) -> torch.Tensor:
        """The tokens that each position has to predict."""
        return micro_batch.completions.labels

    def count(self, result: StepResult, counters: RunCounters) -> tuple[dict[str, Any], str]:
        """Count the step; return its line of metrics.jsonl, with means over all ranks, and the facts to show."""
        assert self.generation is not None
        step, made = result.step - 1, self._schedule.starts_generation(result.step - 1)
        spent = {name: round(self._seconds.get(name, 0.0), 4) for name in SECONDS}
        learn = round(result.seconds - spent["sync"] - spent["wait"], 4)
        part = self._schedule.part_of(step) * self.generation.rows
        trained = self.generation.rollouts[part : part + self.generation.rows]
        asked = self._choice.asked if made else []
        tokens = sum(each.all_tokens for group in self._choice.groups.values() for each in group) if made else 0
        names = [each.sample_id for each in self._prompts] if made else []
        order_hash = prompt_hash_after(counters.order_hash, names)
        counters.count(self._schedule.rows_per_step, tokens, 0, result.seconds, order_hash)
        counters.without_signal = self.without_signal
        row = {
            "step": result.step,
            "stage": self._transcript.stage_of(step),
            "seconds": {**spent, "learn": learn, "all": round(result.seconds, 4)},
            **result.numbers(),
            **(generation_metrics(self.generation, self._choice, filtered=self._chooses) if made else {}),
            **(carried(self._choice.groups) if made and self._rollout.segment_tokens else {}),
            **(self._keeper.metrics(step, self._choice) if made else {}),
            **self._keeper.end_step(step, self._masked_groups(step)),
            **ages(trained, step),
            **with_effective_share(self._means.over_all_ranks(self._accelerator)),
            "order_hash": order_hash,
        }
        if made:
            self._transcript.add(result.step, asked)
        self._transcript.report(row, self._choice if made else None)
        return row, step_facts(row, is_apart=self._rollout.is_apart)

    def evaluate(self, model: Any, step: int) -> tuple[dict[str, float], str]:
        """Rewards on held-out prompts."""
        assert self._evaluator is not None
        found = self._evaluator.evaluate(step)
        return found, f"held-out reward {found['reward']:.3f}"

    def trained_in(self, step: int, broken: Sequence[int]) -> str:
        """The prompts of the generation that the step trained, and where their completions are kept."""
        assert self.generation is not None
        firsts = self.generation.rollouts[:: self._schedule.generations]
        names = [each.prompt.sample_id for each in firsts if each is not NOTHING]
        iteration = self._schedule.iteration_of(self.generation.number)
        where = f"the dataserver's journal has their completions, under iteration {iteration}"
        return f"its prompts: {first_of(names)}; {where}"

    def may_stop_after(self, step: int) -> bool:
        """Whether a generation has ended after `step` steps."""
        return self._schedule.starts_generation(step)

    def save(self, folder: Path | None, step: int, *, is_ending: bool) -> None:
        """Write the generations that are not trained yet."""
        self._pipeline.save(folder, step, is_ending=is_ending)

    def engine_facts(self) -> dict[str, Any]:
        """The versions of the servers that generate, and whether they repeat."""
        return self._pipeline.engine_facts

    def heed(self, stop: StopRequest) -> None:
        """Wait for completions only as long as `run.stop_seconds` allows after a request to stop."""
        self._pipeline.stop = stop
        if self._evaluator is not None:
            self._evaluator.pipeline.stop = stop

    def _begin(self, step: int, number: int) -> None:
        """Collect a generation, and compute the log-probabilities that its losses need from the current weights."""
        began, schedule, group = time.perf_counter(), self._schedule, self._schedule.generations
        self._pipeline.publish(step)
        published = time.perf_counter()
        self._pipeline.advance(step, self._keeper.candidates)
        collected = self._pipeline.take(number)
        self._seconds = {
            **collected.seconds,
            "sync": published - began,
            "wait": time.perf_counter() - published,
        }
        self._prompts = collected.prompts
        self._transcript.record(number, schedule.iteration_of(number), collected.rollouts)
        self._choice = self._keeper.helped(step, self._chosen(collected, number))
        self._require_signal()
        self._pipeline.forget(number)
        self._keeper.keep(step, number, self._choice, collected.candidates)
        parts = schedule.steps_per_generation
        trained = parts_of(self._choice.trained, parts, group, schedule.prompts_per_step)
        remembered = {slot * group + helped.place for slot, helped in self._choice.helped.items()}
        self.generation = Generation.of(number, trained, self._objective, group, parts, remembered)
        self._cutter.cut(self.generation)
        for part, micro_batches in enumerate(self.generation.parts):
            for each in micro_batches:
                if part > 0:  # part 0 is trained before any weight changes: its training pass gives the old policy
                    each.old_logprobs = self._scored(each)[0]
                if self._reference is not None:
                    each.reference_logprobs = self._by_reference(each)

    def _chosen(self, collected: Collected, number: int) -> Choice:
        """The groups to train; with segments, each that a generation made whole has a slot of its own."""
        rollouts, is_whole = collected.rollouts, self._rollout.segment_tokens is None
        groups = by_place(rollouts) if is_whole else in_order(rollouts)
        iteration = self._schedule.iteration_of(number) if is_whole else None
        choice = on_all_ranks(lambda: choose(groups, self._rollout, iteration, collected.candidates))
        if process_count() > 1 and self._rollout.filters:
            verdicts = gather_object([choice.verdicts])
            on_all_ranks(lambda: require_same_verdicts(verdicts))
        return choice

    def _masked_groups(self, step: int) -> dict[GroupKey, float]:
        """For the groups that a step replayed, the share of their tokens beyond the correction's limits."""
        if not self._choice.replayed:
            return {}
        first = self._schedule.part_of(step) * self._schedule.prompts_per_step
        shares = self._masked.over_all_ranks(self._accelerator)
        return {
            candidate.key: shares[slot - first]
            for slot, candidate in self._choice.replayed.items()
            if 0 <= slot - first < len(shares)
        }

    def _require_signal(self) -> None:
        """Stop if the filters have rejected every group for too long."""
        if not self._choice.verdicts:
            return  # nothing was generated
        self.without_signal = 0 if self._choice.selection.accepted else self.without_signal + 1
        steps = self.without_signal * self._schedule.iteration_stride
        if self._rollout.filters and steps >= self._rollout.stop_without_signal:
            names = sorted({each.name for each in self._choice.verdicts.values() if each is not None})
            raise UnavailableError(
                f"the filters ({', '.join(names)}) rejected every group for {steps} steps "
                "(rollout.stop_without_signal): toolkit-rl-debug shows why; use easier or harder prompts, more "
                "rollout.generations, or filters that accept more"
            )

    def _scored(self, micro_batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies without gradient, from the same forward pass as in the loss."""
        with self.loaded.autocast():
            logprobs, entropies = self._scorer(self.loaded.model, micro_batch.completions)
        return logprobs.detach(), entropies

    def _by_reference(self, micro_batch: MicroBatch) -> torch.Tensor:
        assert self._reference is not None
        with self._reference.asked() as model, self.loaded.autocast():
            return self._reference_scorer(model, micro_batch.completions)[0]

    def _set_entropy_threshold(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Set the lowest entropy that is trained: a quantile over all tokens of the step, on all ranks."""
        found = torch.cat([self._scored(each)[1][each.mask] for each in micro_batches]).float()
        most = int(gathered(self._accelerator, torch.tensor([len(found)], device=found.device)).max())
        padded = found.new_full((most,), torch.nan)
        padded[: len(found)] = found
        everywhere = gathered(self._accelerator, padded)
        share = self._objective.parts.top_entropy_quantile
        threshold = entropy_threshold(everywhere[~everywhere.isnan()], share)
        for each in micro_batches:
            each.threshold = threshold

    def _frozen_start(self, config: RLConfig) -> FrozenModel:
        new_adapter = config.lora is not None and config.model.adapter is None
        return start_of_training(self.loaded.model, new_adapter=new_adapter, asked_later=True)
