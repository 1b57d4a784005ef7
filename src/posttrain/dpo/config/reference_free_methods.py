"""The methods that need no reference, each with its own fields, its formula and its paper.

log π(y|x) is the sum of the log-probabilities of an answer's tokens under the model that is trained; y_w is the chosen
answer, y_l the rejected one, |y| an answer's number of tokens, and σ the logistic function.
"""

from typing import ClassVar, Literal

from pydantic import Field

from posttrain.dpo.config.compared_methods import MethodConfig


class ORPOMethod(MethodConfig):
    """Odds ratio preference optimisation, with p = exp(log π(y|x) / |y|) and odds(y) = p / (1 − p):
    −log π(y_w|x) / |y_w| − β log σ(log odds(y_w) − log odds(y_l)).

    Source: Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7, where β is called λ.
    """

    has_reference: ClassVar[bool] = False

    type: Literal["orpo"]
    """Odds ratio preference optimisation (arXiv:2403.07691): SFT and preference in one, without a reference."""

    beta: float = Field(default=0.1, gt=0)
    """Weight λ of the odds ratio's term beside the likelihood of the chosen answer."""


class SimPOMethod(MethodConfig):
    """Simple preference optimisation: −log σ(β (log π(y_w|x) / |y_w| − log π(y_l|x) / |y_l|) − γ).

    Source: Meng et al. 2024, arXiv:2405.14734, eq. 6.
    """

    has_reference: ClassVar[bool] = False

    type: Literal["simpo"]
    """Simple preference optimisation (arXiv:2405.14734): mean log-probabilities, a margin, and no reference."""

    beta: float = Field(default=2.0, gt=0)
    """Scale of the mean log-probabilities; the paper has 2 to 10."""

    gamma: float = Field(default=1.0, ge=0)
    """Target margin γ between the rewards of the two answers; the paper has 0.3 to 1.6, or about β/2."""


class CPOMethod(MethodConfig):
    """Contrastive preference optimisation: −log σ(β (log π(y_w|x) − log π(y_l|x))) − α log π(y_w|x) / |y_w|.

    Source: Xu et al. 2024, arXiv:2401.08417; the likelihood is a mean per token, as in TRL.
    """

    has_reference: ClassVar[bool] = False

    type: Literal["cpo"]
    """Contrastive preference optimisation (arXiv:2401.08417): DPO with a uniform reference, and a likelihood term."""

    beta: float = Field(default=0.1, gt=0)
    """Scale of the difference of the log-probabilities."""

    alpha: float = Field(default=1.0, ge=0)
    """Weight of the likelihood of the chosen answer, which keeps it from falling; 0 leaves it out."""
