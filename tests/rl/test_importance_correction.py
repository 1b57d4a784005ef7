"""Completions by other weights teach, on average, what the model's own would, as far as the correction reaches."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from posttrain.config.load import load_config
from posttrain.rl.config import RLConfig
from posttrain.rl.generation import CompletionBatch, CompletionScorer
from posttrain.rl.losses import LossInputs
from posttrain.rl.objective import Means, PolicyObjective, with_effective_share
from posttrain.rl.presets import Correction, ObjectiveConfig, SamplingCorrection, resolve_objective
from posttrain.rl.rollout.store.recording import open_recording
from posttrain.runs.directory import RunDirectory
from rl.rl_recipes import load
from rl.rl_runs import STEPS, folder_of, train_here, training_rows, write_run
from running import metrics

# Every completion of two tokens from a vocabulary of three.
SEQUENCES = torch.tensor(list(product(range(3), repeat=2)))
UNREACHED = 1e9


class Policy:
    """Logits of the first token, shape [3], and of the second one by the first, shape [3, 3]."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.logits = (first.double().requires_grad_(), second.double().requires_grad_())

    @classmethod
    def at_random(cls, seed: int) -> "Policy":
        draw = torch.Generator().manual_seed(seed)
        return cls(torch.randn(3, generator=draw), torch.randn(3, 3, generator=draw))

    def logprobs(self) -> Tensor:
        """Of each token of each sequence, shape [9, 2]."""
        first, second = (logits.log_softmax(dim=-1) for logits in self.logits)
        return torch.stack([first[SEQUENCES[:, 0]], second[SEQUENCES[:, 0], SEQUENCES[:, 1]]], dim=1)

    def gradient(self, value: Tensor) -> Tensor:
        """Of a number with respect to all logits, shape [12]."""
        return torch.cat([each.flatten() for each in torch.autograd.grad(value, self.logits)])


def expected_gradient(
    model: Policy, sampler: Policy, advantages: Tensor, kind: Correction, limit: float = UNREACHED, floor: float = 0.0
) -> Tensor:
    """The mean gradient of the corrected loss over all completions, each as often as the sampler makes it."""
    correction = SamplingCorrection(kind, limit, floor or None)
    objective = PolicyObjective(resolve_objective("dr_grpo", ObjectiveConfig()), correction)
    logprobs, sampling = model.logprobs(), sampler.logprobs().detach()
    mask = torch.ones_like(logprobs, dtype=torch.bool)
    inputs = LossInputs(logprobs, logprobs.detach(), advantages.unsqueeze(1), mask, sampling_logprobs=sampling)
    losses = objective.token_losses(inputs, torch.zeros_like(logprobs), None, Means())
    return model.gradient((sampling.sum(dim=1).exp() * losses.sum(dim=1)).sum())


def loss(model: Policy, advantages: Tensor) -> Tensor:
    """Minus the mean advantage of the model's own completions."""
    return -(model.logprobs().sum(dim=1).exp() * advantages).sum()


def random_advantages(seed: int) -> Tensor:
    return torch.randn(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SEEDS = pytest.mark.parametrize("seed", range(5))


@SEEDS
@pytest.mark.parametrize("kind", ["sequence_truncate", "sequence_mask"])
def test_a_correction_per_completion_gives_the_gradient_of_the_model_s_own_completions(
    seed: int, kind: Correction
) -> None:
    model, sampler, advantages = Policy.at_random(seed), Policy.at_random(seed + 100), random_advantages(seed)
    wanted = model.gradient(loss(model, advantages))
    assert expected_gradient(model, sampler, advantages, kind).tolist() == pytest.approx(wanted.tolist(), abs=1e-12)
    uncorrected = expected_gradient(model, sampler, advantages, "none")
    assert (uncorrected - wanted).abs().max() > 0.01


@SEEDS
@pytest.mark.parametrize("kind", ["token_truncate", "token_mask"])
def test_a_correction_per_token_is_right_for_each_token_while_the_sampler_makes_the_others(
    seed: int, kind: Correction
) -> None:
    model, sampler, advantages = Policy.at_random(seed), Policy.at_random(seed + 100), random_advantages(seed)
    own, others = model.logprobs(), sampler.logprobs().detach()
    mixed = torch.stack([own[:, 0] + others[:, 1], others[:, 0] + own[:, 1]])
    wanted = model.gradient(-(mixed.exp() * advantages).sum())
    assert expected_gradient(model, sampler, advantages, kind).tolist() == pytest.approx(wanted.tolist(), abs=1e-12)
    assert (wanted - model.gradient(loss(model, advantages))).abs().max() > 0.01


@SEEDS
@pytest.mark.parametrize("kind", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_without_a_difference_every_correction_is_exact(seed: int, kind: Correction) -> None:
    model, advantages = Policy.at_random(seed), random_advantages(seed)
    found = expected_gradient(model, Policy.at_random(seed), advantages, kind)
    assert found.tolist() == pytest.approx(model.gradient(loss(model, advantages)).tolist(), abs=1e-12)


@SEEDS
def test_the_divergence_counts_tokens_as_often_as_the_sampler_makes_them_unless_the_ratio_is_to_behaviour(
    seed: int,
) -> None:
    model, sampler, reference = (Policy.at_random(seed + more) for more in (0, 100, 200))
    # By hand: KL(π ‖ π_ref) of the first token, and of the second one after each first token of the sampler's.
    first, second = model.logits
    kinds = [each.log_softmax(-1) for each in (first, second, *reference.logits)]
    divergences = [(own.exp() * (own - theirs)).sum(-1) for own, theirs in ((kinds[0], kinds[2]), (kinds[1], kinds[3]))]
    wanted = model.gradient(divergences[0] + (sampler.logits[0].softmax(-1).detach() * divergences[1]).sum())

    def found(correction: SamplingCorrection) -> Tensor:
        objective = PolicyObjective(resolve_objective("dr_grpo", ObjectiveConfig(beta=1.0)), correction)
        logprobs, sampling = model.logprobs(), sampler.logprobs().detach()
        mask, nothing = torch.ones_like(logprobs, dtype=torch.bool), torch.zeros(9, 1)
        fixed = (reference.logprobs().detach(), sampling)
        losses = objective.token_losses(
            LossInputs(logprobs, logprobs.detach(), nothing, mask, *fixed), logprobs, None, Means()
        )
        return model.gradient((sampling.sum(dim=1).exp() * losses.sum(dim=1)).sum())

    assert found(SamplingCorrection(against_behaviour=True)).tolist() == pytest.approx(wanted.tolist(), abs=1e-12)
    assert (found(SamplingCorrection("token_mask", UNREACHED)) - wanted).abs().max() > 0.01


# π takes a token with probability 1/2, 1/3 or 1/6, whatever came before; μ takes each with 1/3. So ρ is 1.5, 1 or 0.5
# for a token, 2.25 for the completion 0 0, and 0.25 for the completion 2 2. The gradient of log π of the first token by
# its logits is (1/2, −1/3, −1/6) for token 0, and (−1/2, −1/3, 5/6) for token 2.
TOKEN_0, TOKEN_2 = (1 / 2, -1 / 3, -1 / 6), (-1 / 2, -1 / 3, 5 / 6)
ONLY_0_0 = [1.0] + [0.0] * 8
ONLY_2_2 = [0.0] * 8 + [1.0]


@pytest.mark.parametrize(
    ("kind", "limit", "floor", "advantages", "missing", "direction"),
    [
        # π(0 0) = 1/4 is left out, or counts 2 / 2.25 = 8/9 of it.
        ("sequence_mask", 2.0, 0.0, ONLY_0_0, 1 / 4, TOKEN_0),
        ("sequence_truncate", 2.0, 0.0, ONLY_0_0, 1 / 4 * 1 / 9, TOKEN_0),
        # π(2 2) = 1/36 is left out, or counts 0.3 / 0.25 = 6/5 of it.
        ("sequence_mask", UNREACHED, 0.3, ONLY_2_2, 1 / 36, TOKEN_2),
        ("sequence_truncate", UNREACHED, 0.3, ONLY_2_2, 1 / 36 * -1 / 5, TOKEN_2),
        # The first token counts π(0) · μ(0) = 1/2 · 1/3, which is left out, or counts 1.25 / 1.5 = 5/6 of it.
        ("token_mask", 1.25, 0.0, ONLY_0_0, 1 / 6, TOKEN_0),
        ("token_truncate", 1.25, 0.0, ONLY_0_0, 1 / 6 * 1 / 6, TOKEN_0),
        # π(2) · μ(2) = 1/6 · 1/3 is left out, or counts 0.75 / 0.5 = 3/2 of it.
        ("token_mask", UNREACHED, 0.75, ONLY_2_2, 1 / 18, TOKEN_2),
        ("token_truncate", UNREACHED, 0.75, ONLY_2_2, 1 / 18 * -1 / 2, TOKEN_2),
    ],
)
def test_what_lies_beyond_a_limit_is_missing_from_the_gradient(
    kind: Correction, limit: float, floor: float, advantages: list[float], missing: float, direction: tuple[float, ...]
) -> None:
    odds = torch.tensor([1 / 2, 1 / 3, 1 / 6], dtype=torch.float64).log()
    model, sampler = Policy(odds, odds.expand(3, 3).clone()), Policy(torch.zeros(3), torch.zeros(3, 3))
    given = torch.tensor(advantages, dtype=torch.float64)
    limited = expected_gradient(model, sampler, given, kind, limit, floor)
    bias = limited - expected_gradient(model, sampler, given, kind)
    assert bias[:3].tolist() == pytest.approx([missing * each for each in direction], abs=1e-12)


# ρ is 1, 1 and the exponential of the difference: (2 + e^d)² / (3 (2 + e^2d)), with d = log 4 and the limits of d.
@pytest.mark.parametrize(("difference", "share"), [(math.log(4), 36 / 54), (1000.0, 0.0), (-1000.0, 2 / 3)])
def test_a_ratio_that_is_infinite_leaves_nothing_that_counts(difference: float, share: float) -> None:
    objective = PolicyObjective(resolve_objective("dr_grpo", ObjectiveConfig()), SamplingCorrection("token_mask"))
    logprobs, differences = torch.full((1, 3), -0.5), torch.tensor([[0.0, 0.0, difference]])
    mask, means = torch.ones(1, 3, dtype=torch.bool), Means()
    inputs = LossInputs(logprobs, logprobs, torch.ones(1, 1), mask, sampling_logprobs=logprobs - differences)
    objective.token_losses(inputs, torch.zeros(1, 3), None, means)
    found = with_effective_share(means.over_all_ranks(Accelerator(cpu=True)))
    assert found["sampling/effective_share"] == pytest.approx(share)


def test_a_model_that_does_not_learn_gives_ratios_of_1_one_generation_ahead(tmp_path: Path, tiny_model: Path) -> None:
    config = write_run(
        tmp_path,
        tiny_model,
        model={"dtype": "float32"},
        rollout={"staleness": 1, "threads": 1, "record": True, "temperature": 0.8},
        training={"learning_rate": 1e-30},
        evaluation=None,
    )
    train_here(config)
    rows = training_rows(metrics(folder_of(config)))
    assert [row.get("async/age_max", 0.0) for row in rows] == [0.0] + [1.0] * (STEPS - 1)

    loaded = load(load_config(config, RLConfig))
    tokenizer: Any = loaded.tokenizer
    score = CompletionScorer(loaded.model, 8)
    recording = open_recording(folder_of(config), RunDirectory(tmp_path / "another"))
    for number in recording.numbers:
        _, rollouts = recording.read(number)
        batch = CompletionBatch.of(rollouts, tokenizer.pad_token_id, torch.device("cpu"))
        with torch.no_grad():
            found = score(loaded.model, batch)[0][batch.present]
        sampled = torch.cat([torch.from_numpy(each.logprobs) for each in rollouts if each.logprobs is not None])
        assert len(found) == len(sampled) > 0
        assert (found - sampled).exp().tolist() == pytest.approx([1.0] * len(found), abs=1e-5)
