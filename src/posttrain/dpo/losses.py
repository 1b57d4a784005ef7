"""The losses of preference optimisation: pure functions of the answers' log-probabilities.

Each gives one loss per pair (or labelled row), so that the rows' weights and the mean over an optimizer step are left
to the caller. In the formulas y_w is the chosen answer and y_l the rejected one, log π(y|x) is the sum of the
log-probabilities of an answer's tokens by the trained model and log π_ref(y|x) that by the reference, in nats, |y| is
the number of the tokens, r = log π(y|x) − log π_ref(y|x), Δ = r_w − r_l, and σ is the logistic function.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from posttrain.dpo.config.compared_methods import (
    APODownMethod,
    APOZeroMethod,
    DPOMethod,
    EXOMethod,
    HingeMethod,
    IPOMethod,
    KTOMethod,
    RobustMethod,
)
from posttrain.dpo.config.methods import AnyMethod
from posttrain.dpo.config.mixtures import MixtureMethod, MixturePart, SFTPart
from posttrain.dpo.config.reference_free_methods import CPOMethod, ORPOMethod, SimPOMethod


@dataclass(frozen=True)
class SequenceScores:
    """What a paired loss is computed from; every tensor is of shape [pairs].

    Attributes:
        chosen, rejected: log π(y|x) in nats, summed over the answer's tokens.
        chosen_tokens, rejected_tokens: |y|.
        reference_chosen, reference_rejected: log π_ref(y|x); None where the method has no reference.
    """

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_tokens: torch.Tensor
    rejected_tokens: torch.Tensor
    reference_chosen: torch.Tensor | None = None
    reference_rejected: torch.Tensor | None = None

    @property
    def chosen_ratio(self) -> torch.Tensor:
        """r_w, in nats."""
        assert self.reference_chosen is not None
        return self.chosen - self.reference_chosen

    @property
    def rejected_ratio(self) -> torch.Tensor:
        """r_l, in nats."""
        assert self.reference_rejected is not None
        return self.rejected - self.reference_rejected

    @property
    def difference(self) -> torch.Tensor:
        """Δ = r_w − r_l, in nats."""
        return self.chosen_ratio - self.rejected_ratio

    @property
    def chosen_mean(self) -> torch.Tensor:
        """log π(y_w|x) / |y_w|, in nats per token."""
        return self.chosen / self.chosen_tokens

    @property
    def rejected_mean(self) -> torch.Tensor:
        """log π(y_l|x) / |y_l|, in nats per token."""
        return self.rejected / self.rejected_tokens


def pair_losses(method: AnyMethod | MixturePart, scores: SequenceScores) -> torch.Tensor:
    """The loss of each pair by a paired method, shape [pairs]."""
    return _LOSSES[method.type](method, scores)


def implied_rewards(method: AnyMethod, scores: SequenceScores) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model rewards the chosen and the rejected answers with, without gradient; each of shape [pairs].

    With a reference β r (arXiv:2305.18290, eq. 5 without the term of the prompt alone). Without one as TRL logs them:
    β log π(y|x) for cpo, and β log π(y|x) / |y| for simpo and orpo. A mixture rewards as its leading loss does.
    """
    leading = method.leading if isinstance(method, MixtureMethod) else method
    if leading.needs_reference:
        rewards = scores.chosen_ratio, scores.rejected_ratio
    elif isinstance(leading, CPOMethod):
        rewards = scores.chosen, scores.rejected
    else:
        rewards = scores.chosen_mean, scores.rejected_mean
    return method.beta * rewards[0].detach(), method.beta * rewards[1].detach()


def dpo_losses(method: DPOMethod, scores: SequenceScores) -> torch.Tensor:
    """−(1−ε) log σ(β Δ) − ε log σ(−β Δ), shape [pairs]; ε, the label smoothing, is 0 in DPO itself.

    Rafailov et al. 2023, arXiv:2305.18290, eq. 7; with ε > 0 cDPO: Mitchell 2023, "A note on DPO with noisy
    preferences", eq. 3.
    """
    smoothing, logits = method.label_smoothing, method.beta * scores.difference
    return -(1 - smoothing) * logsigmoid(logits) - smoothing * logsigmoid(-logits)


def ipo_losses(method: IPOMethod, scores: SequenceScores) -> torch.Tensor:
    """(r_w/|y_w| − r_l/|y_l| − 1/(2β))², shape [pairs].

    Azar et al. 2023, arXiv:2310.12036, eq. 17, with means per token as in TRL, which asked the authors.
    """
    difference = scores.chosen_ratio / scores.chosen_tokens - scores.rejected_ratio / scores.rejected_tokens
    return (difference - 1 / (2 * method.beta)).square()


def hinge_losses(method: HingeMethod, scores: SequenceScores) -> torch.Tensor:
    """max(0, 1 − β Δ), shape [pairs].

    Zhao et al. 2023 (SLiC-HF), arXiv:2305.10425, normalised by the reference as in Liu et al. 2023 (RSO),
    arXiv:2309.06657, eq. 8.
    """
    return torch.relu(1 - method.beta * scores.difference)


def robust_losses(method: RobustMethod, scores: SequenceScores) -> torch.Tensor:
    """(−(1−ε) log σ(β Δ) + ε log σ(−β Δ)) / (1 − 2ε), shape [pairs].

    Its mean over labels of which a share ε is flipped is DPO's loss on the true ones: Chowdhury et al. 2024,
    arXiv:2403.00409.
    """
    smoothing, logits = method.label_smoothing, method.beta * scores.difference
    return (-(1 - smoothing) * logsigmoid(logits) + smoothing * logsigmoid(-logits)) / (1 - 2 * smoothing)


def exo_losses(method: EXOMethod, scores: SequenceScores) -> torch.Tensor:
    """q log(q / (1−ε)) + (1−q) log((1−q) / ε) with q = σ(β Δ), shape [pairs].

    Ji et al. 2024, arXiv:2402.00856, eq. 16, for two answers.
    """
    smoothing, logits = method.label_smoothing, method.beta * scores.difference
    chosen = logits.sigmoid() * (logsigmoid(logits) - math.log1p(-smoothing))
    rejected = (-logits).sigmoid() * (logsigmoid(-logits) - math.log(smoothing))
    return chosen + rejected


def apo_zero_losses(method: APOZeroMethod, scores: SequenceScores) -> torch.Tensor:
    """1 − σ(β r_w) + σ(β r_l), shape [pairs].

    D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 7.
    """
    return 1 - torch.sigmoid(method.beta * scores.chosen_ratio) + torch.sigmoid(method.beta * scores.rejected_ratio)


def apo_down_losses(method: APODownMethod, scores: SequenceScores) -> torch.Tensor:
    """σ(β r_w) + 1 − σ(β Δ), shape [pairs].

    D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 8.
    """
    return torch.sigmoid(method.beta * scores.chosen_ratio) + 1 - torch.sigmoid(method.beta * scores.difference)


def orpo_losses(method: ORPOMethod, scores: SequenceScores) -> torch.Tensor:
    """−log p_w − β log σ(log odds_w − log odds_l) with log p = log π(y|x) / |y| and odds = p / (1 − p), shape [pairs].

    Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7, where β is λ. The likelihood is that of the answer, as in the
    paper; TRL counts the prompt's tokens in.
    """
    log_odds = scores.chosen_mean - scores.rejected_mean
    log_odds = log_odds - (_log_of_complement(scores.chosen_mean) - _log_of_complement(scores.rejected_mean))
    return -scores.chosen_mean - method.beta * logsigmoid(log_odds)


def simpo_losses(method: SimPOMethod, scores: SequenceScores) -> torch.Tensor:
    """−log σ(β (log π(y_w|x)/|y_w| − log π(y_l|x)/|y_l|) − γ), shape [pairs].

    Meng et al. 2024, arXiv:2405.14734, eq. 6.
    """
    return -logsigmoid(method.beta * (scores.chosen_mean - scores.rejected_mean) - method.gamma)


def cpo_losses(method: CPOMethod, scores: SequenceScores) -> torch.Tensor:
    """−log σ(β (log π(y_w|x) − log π(y_l|x))) − α log π(y_w|x) / |y_w|, shape [pairs].

    Xu et al. 2024, arXiv:2401.08417, eq. 3, the likelihood as a mean per token, as in TRL.
    """
    return -logsigmoid(method.beta * (scores.chosen - scores.rejected)) - method.alpha * scores.chosen_mean


def sft_losses(method: SFTPart, scores: SequenceScores) -> torch.Tensor:
    """−log π(y_w|x) / |y_w|, the chosen answer's negative log-likelihood per token, shape [pairs]."""
    return -scores.chosen_mean


def mixture_losses(method: MixtureMethod, scores: SequenceScores) -> torch.Tensor:
    """Σ weight · loss over the parts of the mixture, shape [pairs].

    Wang et al. 2024 (MPO), arXiv:2411.10442, eq. 3.
    """
    weighted = [part.weight * pair_losses(part, scores) for part in method.losses]
    return torch.stack(weighted).sum(dim=0)


def kto_losses(
    method: KTOMethod, log_ratios: torch.Tensor, desirable: torch.Tensor, divergence: torch.Tensor
) -> torch.Tensor:
    """λ_D (1 − σ(β (r − z))) for desirable answers, λ_U (1 − σ(β (z − r))) for undesirable ones, shape [rows].

    Ethayarajh et al. 2024, arXiv:2402.01306, eq. 7 and 8.

    Args:
        log_ratios: r in nats, shape [rows].
        desirable: bool, shape [rows].
        divergence: z, shape []; what `kto_divergence` gives.
    """
    sign = torch.where(desirable, 1.0, -1.0)
    weight = torch.where(desirable, method.desirable_weight, method.undesirable_weight)
    return weight * (1 - torch.sigmoid(method.beta * sign * (log_ratios - divergence)))


def kto_divergence(mismatched_ratios: torch.Tensor) -> torch.Tensor:
    """z = max(0, mean r), shape []: how far the model is from the reference, in nats, without gradient.

    Ethayarajh et al. 2024, arXiv:2402.01306, section 4.1: an estimate of the KL divergence from answers that belong to
    other prompts, cut off at 0, below which no divergence is.

    Args:
        mismatched_ratios: log π(y'|x) − log π_ref(y'|x) in nats, y' being another row's answer; shape [rows].
    """
    return mismatched_ratios.detach().mean().clamp(min=0)


def _log_of_complement(log_p: torch.Tensor) -> torch.Tensor:
    """log(1 − p) of log p < 0, by the form that loses no digits (Mächler 2012, "Computing log(1 − e^−a)")."""
    # What is not chosen below must be finite too, or its gradient would be none; p = 1 stands for the next number.
    log_p = log_p.clamp(max=-torch.finfo(log_p.dtype).tiny)
    small = torch.log1p(-torch.exp(log_p.clamp(max=-math.log(2))))
    large = torch.log(-torch.expm1(log_p.clamp(min=-math.log(2))))
    return torch.where(log_p < -math.log(2), small, large)


_LOSSES: Mapping[str, Callable[[Any, SequenceScores], torch.Tensor]] = {
    "dpo": dpo_losses,
    "ipo": ipo_losses,
    "hinge": hinge_losses,
    "robust": robust_losses,
    "exo": exo_losses,
    "apo_zero": apo_zero_losses,
    "apo_down": apo_down_losses,
    "orpo": orpo_losses,
    "simpo": simpo_losses,
    "cpo": cpo_losses,
    "sft": sft_losses,
    "mixture": mixture_losses,
}
