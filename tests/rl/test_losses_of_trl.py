"""Every preset's loss and gradient match TRL's trainers on the same log-probabilities and advantages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from posttrain.rl.losses import LossInputs, StepTotals, correction_factors, entropy_threshold, token_weights
from posttrain.rl.objective import Means, PolicyObjective
from posttrain.rl.presets import PRESETS, Algorithm, Objective, ObjectiveConfig, SamplingCorrection, resolve_objective

ROWS, TOKENS, LONGEST = 8, 6, 10
LOSS_TYPES = {
    "completion_mean": "grpo",
    "step_tokens": "dapo",
    "micro_batch_mean": "bnpo",
    "constant": "dr_grpo",
    "completion_sum": "luspo",
}


@dataclass
class Written:
    """A step with made-up log-probabilities; every field except `advantages` has shape [rows, tokens]."""

    new: torch.Tensor
    old: torch.Tensor
    reference: torch.Tensor
    sampled: torch.Tensor
    entropies: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


def written(*, truncated: Sequence[int] = ()) -> Written:
    """Completions of different lengths in float64; the `truncated` ones are left out of the loss."""
    draw = torch.Generator().manual_seed(3)
    new = -3 * torch.rand(ROWS, TOKENS, generator=draw, dtype=torch.float64)
    old, reference, sampled = (
        new + spread * torch.randn(ROWS, TOKENS, generator=draw, dtype=torch.float64) for spread in (0.4, 0.3, 0.2)
    )
    lengths = torch.tensor([6, 1, 4, 3, 6, 2, 5, 3])
    mask = torch.arange(TOKENS) < lengths.unsqueeze(1)
    mask[list(truncated)] = False
    return Written(
        new=new,
        old=old,
        reference=reference,
        sampled=sampled,
        # Exact in float32, because TRL computes the quantile in float32.
        entropies=torch.rand(ROWS, TOKENS, generator=draw).double(),
        advantages=torch.randn(ROWS, 1, generator=draw, dtype=torch.float64),
        mask=mask,
    )


class _Given:
    """A mix-in for TRL's trainers that replaces the model's output by given log-probabilities and entropies."""

    given: tuple[torch.Tensor, torch.Tensor]

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *self.given, None


class GivenGRPO(_Given, GRPOTrainer):
    """GRPO on given log-probabilities."""


class GivenRLOO(_Given, RLOOTrainer):
    """RLOO on given log-probabilities."""


@pytest.fixture(scope="module")
def trainers(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    common: dict[str, Any] = {
        "output_dir": str(tmp_path_factory.mktemp("trl")),
        "per_device_train_batch_size": ROWS,
        "num_generations": 4,
        "max_completion_length": LONGEST,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "gradient_checkpointing": False,
    }
    made = {}
    for name, kind, args in (("grpo", GivenGRPO, GRPOConfig), ("rloo", GivenRLOO, RLOOConfig)):
        made[name] = kind(
            model=AutoModelForCausalLM.from_pretrained(tiny_model),
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            args=args(**common),
            train_dataset=Dataset.from_dict({"prompt": ["a"] * ROWS}),
            processing_class=AutoTokenizer.from_pretrained(tiny_model),
        )
        made[name].current_gradient_accumulation_steps = 1
        made[name].model.train()
    return made


def by_trl(trainer: Any, step: Written, objective: Objective, **more: Any) -> tuple[float, torch.Tensor]:
    """Loss and gradient of GRPOTrainer with the objective's settings."""
    is_cispo = objective.policy_loss == "cispo"
    trainer.loss_type = "cispo" if is_cispo else LOSS_TYPES[objective.aggregation]
    trainer.importance_sampling_level = objective.importance_sampling_level
    trainer.epsilon_low, trainer.epsilon_high = objective.epsilon, objective.epsilon_high
    trainer.args.delta, trainer.beta = objective.delta, objective.beta
    trainer.args.use_bias_correction_kl = objective.kl_estimator == "k3_corrected"
    trainer.top_entropy_quantile = objective.top_entropy_quantile
    trainer.use_vllm = "importance_sampling_ratio" in more
    return differentiated(trainer, step, old_per_token_logps=step.old, ref_per_token_logps=step.reference, **more)


def differentiated(trainer: Any, step: Written, **more: Any) -> tuple[float, torch.Tensor]:
    leaf = step.new.clone().requires_grad_()
    trainer.given = (leaf, step.entropies)
    ids = torch.ones(ROWS, TOKENS, dtype=torch.long)
    batch = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": step.mask.long(),
        "advantages": step.advantages.squeeze(1),
        "num_items_in_batch": step.mask.sum(),
        **more,
    }
    loss = trainer._compute_loss(trainer.model, batch)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient


def by_us(
    step: Written, objective: Objective, size: int = ROWS, correction: Any = "none"
) -> tuple[float, torch.Tensor]:
    """Loss and gradient of our objective, over a step of micro-batches of `size` completions."""
    totals = StepTotals(ROWS, int(step.mask.sum()), ROWS // size, LONGEST)
    threshold = None
    if objective.top_entropy_quantile < 1:
        threshold = entropy_threshold(step.entropies[step.mask], objective.top_entropy_quantile)
    leaf, total = step.new.clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
    ours = PolicyObjective(objective, SamplingCorrection(correction))
    for start in range(0, ROWS, size):
        part = slice(start, start + size)
        mask = step.mask[part]
        inputs = LossInputs(
            leaf[part], step.old[part], step.advantages[part], mask, step.reference[part], step.sampled[part]
        )
        losses = ours.token_losses(inputs, step.entropies[part], threshold, Means())
        total = total + (losses * token_weights(mask, objective.aggregation, totals, int(mask.sum()))).sum()
    (gradient,) = torch.autograd.grad(total, leaf)
    return total.item(), gradient


def require_equal(found: tuple[float, torch.Tensor], wanted: tuple[float, torch.Tensor]) -> None:
    assert wanted[1].norm() > 1e-3
    assert found[0] == pytest.approx(wanted[0], abs=1e-6, rel=1e-6)
    assert torch.allclose(found[1], wanted[1], atol=1e-6, rtol=1e-6)


VARIANTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "plain": ({}, ()),
    "two-sided": ({"delta": 1.3}, ()),
    "truncated": ({}, (1, 4)),
    "entropy": ({"top_entropy_quantile": 0.4}, ()),
    "divergence as in the paper": ({"kl_estimator": "k3"}, ()),
}
OF_GRPO: list[Algorithm] = [name for name in PRESETS if name != "rloo"]


def chosen(algorithm: Algorithm, beta: float, changes: dict[str, Any]) -> Objective:
    return resolve_objective(algorithm, ObjectiveConfig(**{"beta": beta, **changes}))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("algorithm", OF_GRPO)
def test_a_preset_s_loss_on_one_micro_batch_is_trl_s(
    trainers: dict[str, Any], algorithm: Algorithm, beta: float, variant: str
) -> None:
    changes, truncated = VARIANTS[variant]
    objective, step = chosen(algorithm, beta, changes), written(truncated=truncated)
    require_equal(by_us(step, objective), by_trl(trainers["grpo"], step, objective))


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("algorithm", [name for name in OF_GRPO if name != "bnpo"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_over_a_step_of_unequal_micro_batches_it_is_that_of_one_big_one(
    trainers: dict[str, Any], algorithm: Algorithm, beta: float, size: int
) -> None:
    objective, step = chosen(algorithm, beta, {}), written(truncated=(4,))
    require_equal(by_us(step, objective, size), by_trl(trainers["grpo"], step, objective))


def test_bnpo_is_the_mean_of_its_micro_batches_own_means() -> None:
    objective, step = chosen("bnpo", 0.0, {}), written()
    halves = []
    for part in (slice(0, 4), slice(4, 8)):
        mask = torch.zeros_like(step.mask)
        mask[part] = step.mask[part]
        halves.append(by_us(replace(step, mask=mask), objective))
    found = by_us(step, objective, size=4)
    assert found[0] == pytest.approx((halves[0][0] + halves[1][0]) / 2, abs=1e-6)
    assert torch.allclose(found[1], (halves[0][1] + halves[1][1]) / 2, atol=1e-7)


@pytest.mark.parametrize("size", [2, ROWS])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("truncated", [(), (1, 4)])
def test_rloo_is_that_of_trl_s_rloo_trainer_with_the_divergence_as_a_term_of_the_loss(
    trainers: dict[str, Any], size: int, beta: float, truncated: tuple[int, ...]
) -> None:
    # k3, because k3_corrected multiplies by the ratio: per completion in RLOOTrainer, but per token in GRPOTrainer.
    step, objective = written(truncated=truncated), chosen("rloo", beta, {"kl_estimator": "k3"})
    loss, gradient = differentiated(trainers["rloo"], step, old_logps=(step.old * step.mask).sum(dim=1))
    if truncated:
        # RLOOTrainer gives a completion without tokens the ratio 1; ours leaves it out of the loss.
        loss += step.advantages[list(truncated)].sum().item() / ROWS
    if beta:
        # RLOOTrainer puts the divergence into the reward, so take it from GRPO's loss with zero advantages.
        divergence = replace(step, advantages=torch.zeros_like(step.advantages))
        more = by_trl(trainers["grpo"], divergence, chosen("grpo", beta, {"kl_estimator": "k3"}))
        loss, gradient = loss + more[0], gradient + more[1]
    require_equal(by_us(step, objective, size), (loss, gradient))


@pytest.mark.parametrize("correction", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("algorithm", ["dr_grpo", "gspo", "cispo"])
def test_a_correction_weighs_the_policy_s_loss_and_not_the_divergence(
    trainers: dict[str, Any], algorithm: Algorithm, correction: Any
) -> None:
    objective, step = chosen(algorithm, 0.04, {}), written()
    inputs = LossInputs(step.new, step.old, step.advantages, step.mask, sampling_logprobs=step.sampled)
    factors, _ = correction_factors(inputs, SamplingCorrection(correction))
    wanted = by_trl(trainers["grpo"], step, objective, importance_sampling_ratio=factors)
    require_equal(by_us(step, objective, correction=correction), wanted)
