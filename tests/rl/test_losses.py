"""Policy losses against values computed by hand: ratios, clipping, divergence, correction and aggregation."""

import math

import pytest
import torch

from posttrain.config.sections.engines import Correction
from posttrain.rl.losses import (
    Clipping,
    LossInputs,
    StepTotals,
    cispo_loss,
    clipped_loss,
    clipped_tokens,
    correction_factors,
    importance_ratios,
    kl_divergence,
    remembered_factors,
    token_weights,
)
from posttrain.rl.presets import Aggregation, Estimator, Level, SamplingCorrection

# Two completions; the second is one token shorter, and its padding holds arbitrary values.
MASK = torch.tensor([[True, True, True], [True, True, False]])


def logs(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


# π / π_old: 2, 1, ½ and ½, ½.
NEW = logs([[0.8, 0.5, 0.1], [0.2, 0.4, 0.9]])
OLD = logs([[0.4, 0.5, 0.2], [0.4, 0.8, 0.1]])
GOOD_AND_BAD = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)


def inputs(advantages: torch.Tensor = GOOD_AND_BAD, **fields: torch.Tensor) -> LossInputs:
    return LossInputs(NEW.clone().requires_grad_(), OLD, advantages, MASK, **fields)


def rows(found: torch.Tensor) -> list[list[float]]:
    """The unmasked values of a tensor of shape [2, tokens]."""
    shown = found.detach().tolist()
    return [shown[0], shown[1][:2] if len(shown[1]) == 3 else shown[1]]


def near(wanted: list[list[float]]) -> list[object]:
    return [pytest.approx(row, abs=1e-9) for row in wanted]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("token", [[2.0, 1.0, 0.5], [0.5, 0.5]]),
        # The products are 1 over three tokens and ¼ over two.
        ("sequence", [[1.0], [0.5]]),
        ("sequence_sum", [[1.0], [0.25]]),
    ],
)
def test_a_ratio_is_of_a_token_or_of_a_completion(level: Level, wanted: list[list[float]]) -> None:
    assert rows(importance_ratios(inputs(), level)) == near(wanted)


@pytest.mark.parametrize(
    ("clipping", "advantages", "wanted"),
    [
        # A = 1: −min(ρ, clip(ρ, 0.8, 1.2)); A = −2: 2·max(ρ, clip(ρ)).
        (Clipping(0.2, 0.2), [1.0, -2.0], [[-1.2, -1.0, -0.5], [1.6, 1.6]]),
        (Clipping(0.2, 0.5), [1.0, -2.0], [[-1.5, -1.0, -0.5], [1.6, 1.6]]),
        # If A < 0, only δ bounds the ratio from above.
        (Clipping(0.2, 0.2), [-1.0, -2.0], [[2.0, 1.0, 0.8], [1.6, 1.6]]),
        (Clipping(0.2, 0.2, delta=1.5), [-1.0, -2.0], [[1.5, 1.0, 0.8], [1.6, 1.6]]),
    ],
)
def test_the_ratio_is_clipped_where_it_would_earn_more(
    clipping: Clipping, advantages: list[float], wanted: list[list[float]]
) -> None:
    given = inputs(torch.tensor(advantages, dtype=torch.float64).unsqueeze(1))
    assert rows(clipped_loss(given, importance_ratios(given, "token"), clipping)) == near(wanted)


def test_a_ratio_of_a_completion_is_the_loss_of_each_of_its_tokens() -> None:
    given = inputs()
    loss = clipped_loss(given, importance_ratios(given, "sequence_sum"), Clipping(0.2, 0.2))
    assert rows(loss) == near([[-1.0] * 3, [1.6] * 2])


def test_what_is_clipped_has_no_gradient_and_what_is_not_has_the_ratio_times_the_advantage() -> None:
    given = inputs()
    loss = clipped_loss(given, importance_ratios(given, "token"), Clipping(0.2, 0.2))
    (loss * MASK).sum().backward()
    assert given.logprobs.grad is not None
    # A = 1: ρ = 2 is clipped, 1 and ½ are not; A = −2: both ratios of ½ are below 0.8.
    assert rows(given.logprobs.grad) == near([[0.0, -1.0, -0.5], [0.0, 0.0]])
    clipped = clipped_tokens(given, importance_ratios(given, "token"), Clipping(0.2, 0.2))
    assert (clipped & MASK).tolist() == [[True, False, False], [True, True, False]]


def test_cispo_weighs_the_gradient_of_every_token_by_its_cut_ratio() -> None:
    given = inputs()
    loss = cispo_loss(given, importance_ratios(given, "token"), Clipping(0.2, 1.5))
    (loss * MASK).sum().backward()
    assert given.logprobs.grad is not None
    assert rows(loss) == near(
        [[-1.5 * math.log(0.8), -math.log(0.5), -0.5 * math.log(0.1)], [math.log(0.2), math.log(0.4)]]
    )
    assert rows(given.logprobs.grad) == near([[-1.5, -1.0, -0.5], [1.0, 1.0]])


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    # log π_ref − log π is log 2 for one token, 0 for the others; the ratio of new to old policy is 2 there.
    [("k2", math.log(2) ** 2 / 2), ("k3", 1 - math.log(2)), ("k3_corrected", 2 * (1 - math.log(2)))],
)
def test_a_divergence_is_estimated_at_each_token(estimator: Estimator, wanted: float) -> None:
    reference = NEW.clone()
    reference[0, 0] += math.log(2)
    given = inputs(reference_logprobs=reference)
    found = kl_divergence(given, estimator, importance_ratios(given, "token"))
    assert rows(found) == near([[wanted, 0.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("estimator", ["k2", "k3_corrected"])
def test_the_gradient_of_an_estimate_is_on_average_that_of_the_divergence(estimator: Estimator) -> None:
    """Averages over a vocabulary of three tokens, each weighted by its probability."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.4, -0.3], dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    (wanted,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)
    mask = torch.ones(3, 1, dtype=torch.bool)
    given = LossInputs(policy[:, None], policy.detach()[:, None], torch.zeros(3, 1), mask, reference[:, None])
    estimate = kl_divergence(given, estimator, importance_ratios(given, "token")).squeeze(1)
    (found,) = torch.autograd.grad((policy.detach().exp() * estimate).sum(), logits)
    assert torch.allclose(found, wanted, atol=1e-12)


# π_old / μ: 2, 1, 2 and ½, 9 per token; 4 and 4½ per completion.
TRAINED = logs([[0.5, 0.5, 0.8], [0.2, 0.9, 0.5]])
SAMPLED = logs([[0.25, 0.5, 0.4], [0.4, 0.1, 1.0]])


@pytest.mark.parametrize(
    ("correction", "limit", "factors", "beyond"),
    [
        ("token_truncate", 3.0, [[2.0, 1.0, 2.0], [0.5, 3.0]], [[False] * 3, [False, True]]),
        ("token_mask", 3.0, [[2.0, 1.0, 2.0], [0.5, 0.0]], [[False] * 3, [False, True]]),
        ("sequence_truncate", 3.0, [[3.0], [3.0]], [[True], [True]]),
        ("sequence_mask", 3.0, [[0.0], [0.0]], [[True], [True]]),
        ("sequence_truncate", 4.25, [[4.0], [4.25]], [[False], [True]]),
        ("sequence_mask", 4.25, [[4.0], [0.0]], [[False], [True]]),
    ],
)
def test_a_correction_is_cut_or_left_out_beyond_its_limit(
    correction: Correction, limit: float, factors: list[list[float]], beyond: list[list[bool]]
) -> None:
    given = LossInputs(TRAINED, TRAINED, GOOD_AND_BAD, MASK, sampling_logprobs=SAMPLED)
    found, cut = correction_factors(given, SamplingCorrection(correction, limit))
    assert rows(found) == near(factors)
    assert [row[:2] if len(row) == 3 and number else row for number, row in enumerate(cut.tolist())] == beyond


def test_a_token_of_a_remembered_solution_counts_less_where_it_has_become_less_likely_and_never_more() -> None:
    given = LossInputs(TRAINED, TRAINED, GOOD_AND_BAD, MASK, sampling_logprobs=SAMPLED)
    assert rows(remembered_factors(given)) == near([[1.0, 1.0, 1.0], [0.5, 1.0]])


def test_a_token_whose_probability_the_engine_does_not_know_or_that_nobody_sampled_is_not_corrected() -> None:
    unknown = SAMPLED.clone()
    unknown[0, 0] = math.nan
    mask = torch.tensor([[True, True, True], [False, False, False]])
    given = LossInputs(TRAINED, TRAINED, GOOD_AND_BAD, mask, sampling_logprobs=unknown)
    found, cut = correction_factors(given, SamplingCorrection("token_mask"))
    assert torch.allclose(found, torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64))
    assert not cut.any()


@pytest.mark.parametrize(
    ("aggregation", "wanted"),
    [
        # A step of 4 completions with 10 tokens in 2 micro-batches; this micro-batch has 5 of them in 2 completions.
        ("completion_mean", [[1 / 12] * 3, [1 / 8] * 2]),
        ("completion_sum", [[1 / 4] * 3, [1 / 4] * 2]),
        ("step_tokens", [[1 / 10] * 3, [1 / 10] * 2]),
        ("micro_batch_mean", [[1 / 10] * 3, [1 / 10] * 2]),
        ("constant", [[1 / 32] * 3, [1 / 32] * 2]),
    ],
)
def test_a_token_weighs_what_its_aggregation_says(aggregation: Aggregation, wanted: list[list[float]]) -> None:
    totals = StepTotals(completions=4, tokens=10, micro_batches=2, longest=8)
    found = token_weights(MASK, aggregation, totals, micro_batch_tokens=5)
    assert rows(found) == [pytest.approx(row, rel=1e-6) for row in wanted]
    assert not found[~MASK].any()


def test_a_micro_batch_of_which_nothing_counts_weighs_nothing() -> None:
    nothing = torch.zeros_like(MASK)
    for aggregation in ("completion_mean", "completion_sum", "step_tokens", "micro_batch_mean", "constant"):
        assert not token_weights(nothing, aggregation, StepTotals(2, 0, 1, 8), 0).any()
