"""The losses of two pairs, whose log-ratios are simple enough to check with a pocket calculator."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dpo.losses.anchored import APODownMethod, APOZeroMethod
from posttrain.dpo.losses.base import SequenceScores
from posttrain.dpo.losses.kto import KTOMethod, kto_divergence
from posttrain.dpo.losses.logistic import DPOMethod, EXOMethod, RobustMethod
from posttrain.dpo.losses.margin import HingeMethod, IPOMethod
from posttrain.dpo.losses.methods import AnyMethod, MixtureMethod
from posttrain.dpo.losses.reference_free import CPOMethod, ORPOMethod, SimPOMethod
from posttrain.dpo.measures import Answers, measure


def mixture(*losses: dict[str, object]) -> MixtureMethod:
    return MixtureMethod.model_validate({"type": "mixture", "losses": losses})


def implied_rewards(method: AnyMethod, scores: SequenceScores) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs, tokens = (scores.chosen, scores.rejected), (scores.chosen_tokens, scores.rejected_tokens)
    references = (scores.reference_chosen, scores.reference_rejected) if method.needs_reference else None
    answers = Answers(torch.cat(logprobs), torch.cat(tokens), None if references is None else torch.cat(references))
    measured = measure(method, answers)
    return measured["chosen_reward"], measured["rejected_reward"]


# Pair 1: r_w = −10 + 12 = 2 and r_l = −20 + 19 = −1, so Δ = 3; 4 and 10 tokens, so −2.5 and −2 nats per token.
# Pair 2: r_w = −6 + 5 = −1 and r_l = −3 + 4 = 1, so Δ = −2; 2 and 3 tokens, so −3 and −1 nats per token.
SCORES = SequenceScores(
    chosen=torch.tensor([-10.0, -6.0]),
    rejected=torch.tensor([-20.0, -3.0]),
    chosen_tokens=torch.tensor([4, 2]),
    rejected_tokens=torch.tensor([10, 3]),
    reference_chosen=torch.tensor([-12.0, -5.0]),
    reference_rejected=torch.tensor([-19.0, -4.0]),
)

# −log σ(x) = log(1 + e^−x) for the logits x = β Δ with β = 0.5 and Δ = 3 or −2.
SOFT_1_5 = 0.2014133  # log(1 + 0.2231302)
SOFT_MINUS_1 = 1.3132617  # log(1 + 2.7182818)
SIGMOID_1 = 0.7310586  # 1 / (1 + 0.3678794)
SIGMOID_HALF = 0.6224593  # 1 / (1 + 0.6065307)
SIGMOID_1_5 = 0.8175745  # 1 / (1 + 0.2231302)

BY_HAND = {
    "dpo": (DPOMethod(beta=0.5), [SOFT_1_5, SOFT_MINUS_1]),
    # 0.9 · −log σ(x) + 0.1 · −log σ(−x), and −log σ(−x) = x − log σ(x).
    "cdpo": (
        DPOMethod(beta=0.5, label_smoothing=0.1),
        [SOFT_1_5 + 0.1 * 1.5, SOFT_MINUS_1 + 0.1 * -1.0],
    ),
    # 2/4 + 1/10 − 1 = −0.4, and −1/2 − 1/3 − 1 = −11/6.
    "ipo": (IPOMethod(type="ipo", beta=0.5), [0.16, 121 / 36]),
    # 1 − 1.5 < 0, and 1 + 1.
    "hinge": (HingeMethod(type="hinge", beta=0.5), [0.0, 2.0]),
    # (0.9 s − 0.1 (s + x)) / 0.8 with s = −log σ(x), which is s − x / 8.
    "robust": (
        RobustMethod(type="robust", beta=0.5, label_smoothing=0.1),
        [SOFT_1_5 - 1.5 / 8, SOFT_MINUS_1 + 1 / 8],
    ),
    # q (log q − log 0.9) + (1 − q) (log(1 − q) − log 0.1), with log q = −s and log(1 − q) = −s − x.
    "exo": (
        EXOMethod(type="exo", beta=0.5, label_smoothing=0.1),
        [
            SIGMOID_1_5 * (-SOFT_1_5 + 0.1053605) + (1 - SIGMOID_1_5) * (-SOFT_1_5 - 1.5 + 2.3025851),
            (1 - SIGMOID_1) * (-SOFT_MINUS_1 + 0.1053605) + SIGMOID_1 * (-SOFT_MINUS_1 + 1 + 2.3025851),
        ],
    ),
    # 1 − σ(1) + σ(−1/2) = 2 − σ(1) − σ(1/2), and 1 − σ(−1/2) + σ(1/2) = 2 σ(1/2).
    "apo_zero": (APOZeroMethod(type="apo_zero", beta=0.5), [2 - SIGMOID_1 - SIGMOID_HALF, 2 * SIGMOID_HALF]),
    # σ(1) + 1 − σ(1.5), and σ(−1/2) + 1 − σ(−1) = 1 − σ(1/2) + σ(1).
    "apo_down": (
        APODownMethod(type="apo_down", beta=0.5),
        [SIGMOID_1 + 1 - SIGMOID_1_5, 1 - SIGMOID_HALF + SIGMOID_1],
    ),
    # p = e^−2.5 = 0.0820850 and e^−2 = 0.1353353: odds 0.0894256 and 0.1565176. Their ratio 0.5713454 is the odds of σ,
    # so −log σ = log(1 + 1/0.5713454) = 1.0117. Pair 2: 0.0497871 and 0.3678794, odds 0.0523957 and 0.5819767.
    "orpo": (
        ORPOMethod(type="orpo", beta=0.5),
        [2.5 + 0.5 * math.log(1 + 0.1565176 / 0.0894256), 3 + 0.5 * math.log(1 + 0.5819767 / 0.0523957)],
    ),
    # 2 (−2.5 + 2) − 0.5 = −1.5, and 2 (−3 + 1) − 0.5 = −4.5; log(1 + e^4.5) = 4.5 + log(1 + 0.0111090).
    "simpo": (SimPOMethod(type="simpo", beta=2.0, gamma=0.5), [SOFT_1_5 + 1.5, 4.5110477]),
    # 0.15 (−10 + 20) = 1.5, and 0.5 times 2.5; 0.15 (−6 + 3) = −0.45, log(1 + e^0.45) = 0.9432, and 0.5 times 3.
    "cpo": (
        CPOMethod(type="cpo", beta=0.15, alpha=0.5),
        [SOFT_1_5 + 1.25, math.log(1 + 1.5683122) + 1.5],
    ),
    # 2 DPO + 0.25 SFT.
    "mixture": (
        mixture({"type": "dpo", "beta": 0.5, "weight": 2.0}, {"type": "sft", "weight": 0.25}),
        [2 * SOFT_1_5 + 0.625, 2 * SOFT_MINUS_1 + 0.75],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_loss_of_each_pair_is_the_one_worked_out_by_hand(name: str) -> None:
    method, expected = BY_HAND[name]
    losses = method.loss(SCORES)
    assert losses.shape == (2,)
    assert losses.tolist() == pytest.approx(expected, abs=2e-6)


# Four answers with log-ratios 3, 1, 1, −2 and z = 1: with β = 0.5, β (r − z) is 1, 0, 0, −1.5.
RATIOS, DESIRABLE = torch.tensor([3.0, 1.0, 1.0, -2.0]), torch.tensor([True, True, False, False])


def test_ktos_loss_is_the_one_worked_out_by_hand() -> None:
    method = KTOMethod(type="kto", beta=0.5, desirable_weight=2.0, undesirable_weight=3.0)
    losses = method.loss(RATIOS, DESIRABLE, torch.tensor(1.0))
    # 2 (1 − σ(1)), 2 (1 − σ(0)), 3 (1 − σ(0)), 3 (1 − σ(1.5)).
    assert losses.tolist() == pytest.approx([0.5378828, 1.0, 1.5, 0.5472764], abs=2e-6)


@pytest.mark.parametrize(("ratios", "expected"), [([1.0, 2.0, -0.5, 0.5], 0.75), ([1.0, -2.0], 0.0)])
def test_the_divergence_is_the_mean_ratio_and_never_below_zero(ratios: list[float], expected: float) -> None:
    mismatched = torch.tensor(ratios, requires_grad=True)
    divergence = kto_divergence(mismatched)
    assert divergence.item() == expected
    assert not divergence.requires_grad


REWARDS = {
    # β r.
    "dpo": (DPOMethod(beta=0.5), [1.0, -0.5], [-0.5, 0.5]),
    "ipo": (IPOMethod(type="ipo", beta=0.5), [1.0, -0.5], [-0.5, 0.5]),
    "mixture": (BY_HAND["mixture"][0], [1.0, -0.5], [-0.5, 0.5]),
    # β log π.
    "cpo": (CPOMethod(type="cpo", beta=0.15), [-1.5, -0.9], [-3.0, -0.45]),
    # β times nats per token.
    "simpo": (SimPOMethod(type="simpo", beta=2.0), [-5.0, -6.0], [-4.0, -2.0]),
    "orpo": (ORPOMethod(type="orpo", beta=0.5), [-1.25, -1.5], [-1.0, -0.5]),
}


@pytest.mark.parametrize("name", REWARDS)
def test_the_implied_rewards_are_those_worked_out_by_hand(name: str) -> None:
    method, chosen, rejected = REWARDS[name]
    found = implied_rewards(method, SCORES)
    assert [each.tolist() for each in found] == [pytest.approx(chosen), pytest.approx(rejected)]


def test_rewards_have_no_gradient() -> None:
    scores = SequenceScores(*(torch.tensor([-3.0], requires_grad=True) for _ in range(2)), *[torch.tensor([2])] * 2)
    chosen, rejected = implied_rewards(SimPOMethod(type="simpo"), scores)
    assert not chosen.requires_grad and not rejected.requires_grad


# APO-down lowers both answers; the other three have a minimum at a finite margin.
PULLING = [name for name in BY_HAND if name not in ("apo_down", "ipo", "exo", "cdpo")]
LOGPROB = st.floats(min_value=-300, max_value=-0.25)


@given(st.lists(st.tuples(LOGPROB, LOGPROB, LOGPROB, LOGPROB), min_size=1, max_size=5), st.sampled_from(PULLING))
def test_no_loss_grows_where_the_chosen_answer_gains_or_the_rejected_one_loses(
    rows: list[tuple[float, ...]], name: str
) -> None:
    chosen, rejected, *references = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    tokens = torch.full_like(chosen, 5)
    chosen.requires_grad_()
    rejected.requires_grad_()
    BY_HAND[name][0].loss(SequenceScores(chosen, rejected, tokens, tokens, *references)).sum().backward()
    assert chosen.grad is not None and rejected.grad is not None
    assert (chosen.grad <= 1e-12).all()
    assert (rejected.grad >= -1e-12).all()


@given(st.sampled_from(list(BY_HAND)), st.floats(min_value=-1e4, max_value=-1e-3), LOGPROB)
def test_losses_and_gradients_are_finite_far_from_the_reference(name: str, chosen: float, rejected: float) -> None:
    method = BY_HAND[name][0]
    logprobs = [torch.tensor([value], requires_grad=True) for value in (chosen, rejected)]
    one = torch.tensor([1])
    losses = method.loss(SequenceScores(*logprobs, one, one, torch.tensor([-9.0]), torch.tensor([-9.0])))
    losses.sum().backward()
    assert losses.isfinite().all()
    for each in logprobs:
        # A loss may ignore the rejected answer, as sft does.
        assert each.grad is None or each.grad.isfinite().all()


def test_a_certain_answer_has_finite_odds() -> None:
    # log p = 0: the odds p / (1 − p) are infinite, which would stop training.
    certain = torch.tensor([0.0], requires_grad=True)
    one = torch.tensor([1])
    losses = ORPOMethod(type="orpo").loss(SequenceScores(certain, torch.tensor([-2.0]), one, one))
    losses.sum().backward()
    assert losses.isfinite().all()
    assert certain.grad is not None and certain.grad.isfinite().all()


def test_the_loss_at_the_start_is_known() -> None:
    # While the model is still the reference, Δ = 0.
    scores = SequenceScores(SCORES.chosen, SCORES.rejected, *[SCORES.chosen_tokens] * 2, SCORES.chosen, SCORES.rejected)
    assert DPOMethod().loss(scores).tolist() == pytest.approx([math.log(2)] * 2)
    assert HingeMethod(type="hinge").loss(scores).tolist() == [1.0, 1.0]
    assert IPOMethod(type="ipo", beta=0.1).loss(scores).tolist() == pytest.approx([25.0, 25.0])
    assert APOZeroMethod(type="apo_zero").loss(scores).tolist() == [1.0, 1.0]


def test_a_mixture_without_a_reference_adds_up_and_rewards_as_its_leading_loss() -> None:
    method = mixture({"type": "sft", "weight": 0.5}, {"type": "simpo", "beta": 2, "gamma": 1})
    scores = SequenceScores(*(torch.tensor([number]) for number in (-4.0, -6.0, 2, 3)))
    # Both means are −2 nats per token: −log σ(−1) = log(1 + e) = 1.31326, plus half of 2 nats.
    assert method.loss(scores).item() == pytest.approx(1.31326 + 1.0, abs=1e-5)
    assert [reward.item() for reward in implied_rewards(method, scores)] == [-4.0, -4.0]
