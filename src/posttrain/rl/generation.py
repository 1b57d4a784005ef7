"""Micro-batches of a generation: advantages, batch plan, and log-probabilities.

Which rank trains which completions is a pure function of data that all ranks have, so all make the same plan. In 16-bit
precision the last digits depend on the shape of a batch, so log-probabilities that are compared (new and old policy,
policy and reference) are computed from the same rows with the same padding.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.data.curriculum.micro_batches import MicroBatchSize, cut
from posttrain.models.kernels.compiled_layers import is_compiled
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.router_balance import RouterBalance
from posttrain.rl.losses import StepTotals, token_weights
from posttrain.rl.objective import PolicyObjective
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.schedule import RolloutSchedule


@dataclass(frozen=True)
class CompletionBatch:
    """Completions with their prompts, as model input.

    Attributes:
        input_ids: prompt and completion of each row, padded on the right, shape [rows, longest − 1].
        labels: the completion's tokens at the positions that predict them, -100 elsewhere, same shape.
        present: where a completion has a token, bool [rows, tokens].
        temperatures: sampling temperature of each row, shape [rows]; None if all are 1.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    present: torch.Tensor
    temperatures: torch.Tensor | None

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], pad_id: int, device: torch.device) -> "CompletionBatch":
        """Build a row per rollout; a rollout without tokens, whose prompt is too long, becomes a single token."""
        completions = [torch.from_numpy(each.ids) if each.tokens else torch.tensor([pad_id]) for each in rollouts]
        prompts = [torch.tensor(each.prompt.ids if each.tokens else each.prompt.ids[-1:]) for each in rollouts]
        pairs = list(zip(prompts, completions, strict=True))
        ids = pad_sequence([torch.cat(pair) for pair in pairs], batch_first=True, padding_value=pad_id)
        ignored = [torch.full_like(prompt, IGNORED_LABEL) for prompt in prompts]
        labels = pad_sequence(
            [torch.cat(pair) for pair in zip(ignored, completions, strict=True)],
            batch_first=True,
            padding_value=IGNORED_LABEL,
        )
        present = pad_sequence([torch.ones(len(each), dtype=torch.bool) for each in completions], batch_first=True)
        temperatures = np.array([each.temperature for each in rollouts], dtype=np.float32)
        return cls(
            ids[:, :-1].to(device),
            labels[:, 1:].to(device),
            present.to(device),
            None if (temperatures == 1).all() else torch.from_numpy(temperatures).to(device),
        )


@dataclass
class MicroBatch:
    """Completions that go through the model together, without those that have no loss.

    Attributes:
        rows: the number of each completion among those of the step.
        advantages: shape [rows, 1].
        mask: the tokens that count, bool [rows, tokens].
        weights: weight of each token's loss in the step's loss, shape [rows, tokens].
        sampling_logprobs: log μ, shape [rows, tokens]; None if the engine was not asked for them.
        old_logprobs, reference_logprobs: same shape; None until computed, or if not needed.
        threshold: entropy below which tokens are not trained; None trains all.
        remembered: which are remembered solutions, bool [rows, 1]; None if the generation has none.
    """

    rows: Sequence[int]
    completions: CompletionBatch
    advantages: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    sampling_logprobs: torch.Tensor | None
    old_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    threshold: float | None = None
    remembered: torch.Tensor | None = None


@dataclass
class Generation:
    """All rollouts of a generation; every rank has them all.

    Attributes:
        rewards: shape [groups, G], NaN for a missing reward.
        advantages: same shape.
        remembered: the numbers of the rollouts that are remembered solutions.
        trained: for each rollout, whether its advantage is not 0 and any of its tokens counts.
        rows: rollouts of an optimizer step.
        parts: this rank's micro-batches for each optimizer step of one pass over the generation.
    """

    number: int
    rollouts: Sequence[Rollout]
    rewards: torch.Tensor
    advantages: torch.Tensor
    rows: int
    remembered: Collection[int] = ()
    trained: list[bool] = field(default_factory=list)
    parts: list[list[MicroBatch]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        number: int,
        rollouts: Sequence[Rollout],
        objective: PolicyObjective,
        generations: int,
        parts: int = 1,
        remembered: Collection[int] = (),
    ) -> "Generation":
        """Build a generation with its advantages.

        Args:
            generations: completions per prompt.
            parts: optimizer steps in one pass.
            remembered: the numbers of the rollouts that are remembered solutions.
        """
        table = rewards_of(rollouts, generations)
        lengths = torch.tensor([each.tokens for each in rollouts]).view(-1, generations)
        return cls(number, rollouts, table, objective.advantages(table, lengths), len(rollouts) // parts, remembered)


def rewards_of(rollouts: Sequence[Rollout], generations: int) -> torch.Tensor:
    """The rewards of groups of `generations` completions, shape [groups, generations], NaN for a missing one."""
    rewards = [float("nan") if each.reward is None else each.reward for each in rollouts]
    return torch.tensor(rewards, dtype=torch.float64).view(len(rewards) // generations, generations)


@dataclass(frozen=True)
class BatchPlan:
    """How an optimizer step is split into micro-batches.

    Attributes:
        micro_batches: for each rank, its micro-batches as tuples of completion numbers within the step; all ranks have
            equally many. Micro-batches with nothing to train come last.
        passes: number of micro-batches to compute on the rank that has the most to compute; at least 1.
    """

    micro_batches: tuple[tuple[tuple[int, ...], ...], ...]
    passes: int


def plan_batch(
    tokens: Sequence[int], trained: Sequence[bool], group: int, at_once: MicroBatchSize, ranks: int
) -> BatchPlan:
    """Plan a step.

    Args:
        tokens: length of each completion with its prompt; completions of one prompt are adjacent.
        trained: whether each completion has anything to train.
        group: completions of each prompt.
        at_once: completions that go through the model at once; their number divides that of a rank. A prompt that
            several share counts for each of them.
    """
    per_rank = len(tokens) // ranks
    size = next(size for size in range(group, 0, -1) if group % size == 0 and per_rank % size == 0)

    def is_trained(rows: Sequence[int]) -> bool:
        return any(trained[row] for row in rows)

    def weight(rows: Sequence[int]) -> int:
        return sum(tokens[row] for row in rows)

    # Longest first: a batch too large for memory fails at once, and the short ones balance the ranks at the end.
    units = [range(start, start + size) for start in range(0, len(tokens), size)]
    shares: list[list[range]] = [[] for _ in range(ranks)]
    for unit in sorted(units, key=lambda unit: (not is_trained(unit), -weight(unit), unit[0])):
        free = [share for share in shares if len(share) * size < per_rank]
        min(free, key=lambda share: sum(weight(each) for each in share if is_trained(each))).append(unit)
    rows = [[row for unit in share for row in unit] for share in shares]
    most = max(len(cut(each, tokens, at_once)) for each in rows)
    pieces = [cut(each, tokens, at_once, at_least=most) for each in rows]
    micro_batches = [tuple(sorted(each, key=is_trained, reverse=True)) for each in pieces]
    return BatchPlan(tuple(micro_batches), max(1, *(sum(map(is_trained, of_rank)) for of_rank in micro_batches)))


@dataclass(frozen=True)
class Cutter:
    """Cuts generations into micro-batches.

    Attributes:
        longest: the largest `rollout.max_new_tokens` of the run.
        pad_id: token id used as padding.
    """

    objective: PolicyObjective
    schedule: RolloutSchedule
    at_once: MicroBatchSize
    rank: int
    ranks: int
    longest: int
    pad_id: int
    device: torch.device

    def cut(self, generation: Generation) -> None:
        """Fill `generation.parts` and `generation.trained`."""
        size, advantages = generation.rows, generation.advantages.flatten()
        generation.trained = [
            bool(advantage != 0) and bool(self._mask_of(each).any())
            for each, advantage in zip(generation.rollouts, advantages, strict=True)
        ]
        generation.parts = [
            self._part(generation.rollouts[start : start + size], advantages[start : start + size])
            for start in range(0, len(generation.rollouts), size)
        ]
        if generation.remembered:
            for part, micro_batches in enumerate(generation.parts):
                for each in micro_batches:
                    flags = [[part * size + row in generation.remembered] for row in each.rows]
                    each.remembered = torch.tensor(flags, device=self.device)

    def _part(self, rollouts: Sequence[Rollout], advantages: torch.Tensor) -> list[MicroBatch]:
        """This rank's micro-batches of an optimizer step."""
        counted = [int(self._mask_of(each).sum()) for each in rollouts]
        has_loss = [
            count > 0 and (self.objective.needs_all or bool(advantage != 0))
            for count, advantage in zip(counted, advantages, strict=True)
        ]
        tokens = [len(each.prompt.ids) + each.tokens for each in rollouts]
        plan = plan_batch(tokens, has_loss, self.schedule.generations, self.at_once, self.ranks)
        completions = sum(not each.is_left_out for each in rollouts)
        micro_batches = sum(
            any(not rollouts[row].is_left_out for row in rows) for of_rank in plan.micro_batches for rows in of_rank
        )
        totals = StepTotals(max(completions, 1), sum(counted), max(micro_batches, 1), self.longest)
        return [
            self._micro_batch(rows, rollouts, advantages, has_loss, totals, sum(counted[row] for row in rows))
            for rows in plan.micro_batches[self.rank][: plan.passes]
        ]

    def _micro_batch(
        self,
        planned: Sequence[int],
        rollouts: Sequence[Rollout],
        advantages: torch.Tensor,
        has_loss: Sequence[bool],
        totals: StepTotals,
        micro_batch_tokens: int,
    ) -> MicroBatch:
        # If none has a loss, one is computed all the same, so that the backward pass has a graph.
        rows = [row for row in planned if has_loss[row]] or [planned[0]]
        chosen = [rollouts[row] for row in rows]
        completions = CompletionBatch.of(chosen, self.pad_id, self.device)
        shape = tuple(completions.present.shape)
        mask = _padded([self._mask_of(each) for each in chosen], shape, np.bool_).to(self.device)
        sampling = None
        if all(each.logprobs is not None or not each.tokens for each in chosen):
            found = [np.zeros(0, np.float32) if each.logprobs is None else each.logprobs for each in chosen]
            sampling = _padded(found, shape, np.float32).to(self.device)
        return MicroBatch(
            rows=rows,
            completions=completions,
            advantages=advantages[rows].float().unsqueeze(1).to(self.device),
            mask=mask,
            weights=token_weights(mask, self.objective.parts.aggregation, totals, micro_batch_tokens),
            sampling_logprobs=sampling,
        )

    def _mask_of(self, rollout: Rollout) -> np.ndarray:
        """The tokens of a rollout that count."""
        is_left_out = rollout.was_cut and self.objective.parts.mask_truncated_completions
        return np.zeros_like(rollout.mask) if is_left_out else rollout.mask


def _padded(rows: Sequence[np.ndarray], shape: tuple[int, ...], dtype: type) -> torch.Tensor:
    """The rows padded with zeros to `shape`."""
    padded = np.zeros(shape, dtype=dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)


class CompletionScorer:
    """Computes one model's log p of each completion token, and the entropy at its position."""

    def __init__(
        self, model: Any, rows_at_once: int, *, packed: bool = False, routers: RouterBalance | None = None
    ) -> None:
        """`model`: the unwrapped model.

        `rows_at_once`: the usual number of rows per pass; `packed`: whether they are one sequence; `routers`: as in
        `LabelledHead`.
        """
        self._head = LabelledHead(model, packed=packed, routers=routers)
        self._needs_two = is_compiled(model) and not packed and rows_at_once > 1

    def __call__(self, model: Any, batch: CompletionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities with gradient, and entropies without, in nats; shape [rows, tokens], 0 for padding.

        Args:
            model: the model given to the constructor, or a wrapper of it.
        """
        ids, labels = batch.input_ids, batch.labels
        temperatures = batch.temperatures
        if temperatures is not None:
            temperatures = temperatures.repeat_interleave(batch.present.sum(dim=1))
        if self._needs_two and len(ids) == 1:
            # A single row would compile to another program; a second row, without labels, avoids that.
            ids, labels = ids.expand(2, -1), torch.cat([labels, torch.full_like(labels, IGNORED_LABEL)])
        logprobs, entropies = self._head.scores(model, ids, labels, temperatures=temperatures, entropies=True)
        assert entropies is not None
        nothing = torch.zeros(batch.present.shape, dtype=torch.float32, device=ids.device)
        return nothing.masked_scatter(batch.present, logprobs), nothing.masked_scatter(batch.present, entropies)
