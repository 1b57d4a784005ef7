"""A generation as it is trained: its rollouts with their advantages, cut into the micro-batches of each step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from posttrain.rl.batch_plan import BatchPlan, plan_batch
from posttrain.rl.logprobs import CompletionBatch
from posttrain.rl.losses import StepTotals, token_weights
from posttrain.rl.objective import PolicyObjective
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.schedule import RolloutSchedule


@dataclass
class MicroBatch:
    """Completions that go through the model together; those of advantage 0 are left out where they have no loss.

    Attributes:
        advantages: shape [rows, 1].
        mask: the tokens that count, bool [rows, tokens].
        weights: of each token's loss in that of the step, shape [rows, tokens].
        sampling_logprobs: log μ, shape [rows, tokens]; None where the engine was not asked.
        old_logprobs, reference_logprobs: of the same shape; None until they are computed, or where none are wanted.
        threshold: of entropy, below which tokens are not trained.
    """

    completions: CompletionBatch
    advantages: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    sampling_logprobs: torch.Tensor | None
    old_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    threshold: float | None = None


@dataclass
class Generation:
    """The rollouts of a generation, on every rank.

    Attributes:
        rewards: NaN where there is none, shape [groups, G].
        advantages: of the same shape.
        trained: of which rollouts something is learnt by their advantage.
        parts: this rank's micro-batches of each of the optimizer steps that go once through it.
    """

    number: int
    rollouts: Sequence[Rollout]
    rewards: torch.Tensor
    advantages: torch.Tensor
    trained: list[bool] = field(default_factory=list)
    parts: list[list[MicroBatch]] = field(default_factory=list)

    @classmethod
    def of(cls, number: int, rollouts: Sequence[Rollout], objective: PolicyObjective, generations: int) -> "Generation":
        """The rollouts with their advantages; `generations` are those of each prompt."""
        rewards = [float("nan") if each.reward is None else each.reward for each in rollouts]
        lengths = torch.tensor([each.tokens for each in rollouts]).view(-1, generations)
        table = torch.tensor(rewards, dtype=torch.float64).view(-1, generations)
        return cls(number, rollouts, table, objective.advantages(table, lengths))


@dataclass(frozen=True)
class Cutter:
    """Cuts generations into micro-batches.

    Attributes:
        longest: `rollout.max_new_tokens`.
        pad_id: a token that stands where there is none.
    """

    objective: PolicyObjective
    schedule: RolloutSchedule
    micro_batch_size: int
    rank: int
    ranks: int
    longest: int
    pad_id: int
    device: torch.device

    def cut(self, generation: Generation) -> None:
        """Fill `generation.parts` and `generation.trained`."""
        size, advantages = self.schedule.rows_per_step, generation.advantages.flatten()
        generation.trained = [
            bool(advantage != 0) and bool(self._mask_of(each).any())
            for each, advantage in zip(generation.rollouts, advantages, strict=True)
        ]
        generation.parts = [
            self._part(generation.rollouts[start : start + size], advantages[start : start + size])
            for start in range(0, len(generation.rollouts), size)
        ]

    def _part(self, rollouts: Sequence[Rollout], advantages: torch.Tensor) -> list[MicroBatch]:
        """This rank's micro-batches of an optimizer step."""
        counted = [int(self._mask_of(each).sum()) for each in rollouts]
        has_loss = [
            count > 0 and (self.objective.needs_all or bool(advantage != 0))
            for count, advantage in zip(counted, advantages, strict=True)
        ]
        tokens = [len(each.prompt.ids) + each.tokens for each in rollouts]
        plan = plan_batch(tokens, has_loss, self.schedule.generations, self.micro_batch_size, self.ranks)
        totals = StepTotals(len(rollouts), sum(counted), sum(map(len, plan.micro_batches)), self.longest)
        return [
            self._micro_batch(rows, rollouts, advantages, has_loss, totals, sum(counted[row] for row in rows))
            for rows in self._mine(plan)
        ]

    def _mine(self, plan: BatchPlan) -> Sequence[Sequence[int]]:
        return plan.micro_batches[self.rank][: plan.passes]

    def _micro_batch(
        self,
        planned: Sequence[int],
        rollouts: Sequence[Rollout],
        advantages: torch.Tensor,
        has_loss: Sequence[bool],
        totals: StepTotals,
        micro_batch_tokens: int,
    ) -> MicroBatch:
        # One is computed where none has a loss, so that there is something to go backward through.
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
            completions=completions,
            advantages=advantages[rows].float().unsqueeze(1).to(self.device),
            mask=mask,
            weights=token_weights(mask, self.objective.objective.aggregation, totals, micro_batch_tokens),
            sampling_logprobs=sampling,
        )

    def _mask_of(self, rollout: Rollout) -> np.ndarray:
        """The tokens of a rollout that count."""
        is_left_out = rollout.was_cut and self.objective.objective.mask_truncated_completions
        return np.zeros_like(rollout.mask) if is_left_out else rollout.mask


def _padded(rows: Sequence[np.ndarray], shape: tuple[int, ...], dtype: type) -> torch.Tensor:
    """The rows padded with zeros to `shape`."""
    padded = np.zeros(shape, dtype=dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)
