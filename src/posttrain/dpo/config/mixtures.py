"""Mixtures: several losses on the same pairs, added up."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from posttrain.config.strict import StrictModel
from posttrain.dpo.config.compared_methods import (
    APODownMethod,
    APOZeroMethod,
    DPOMethod,
    EXOMethod,
    HingeMethod,
    IPOMethod,
    MethodConfig,
    RobustMethod,
)
from posttrain.dpo.config.reference_free_methods import CPOMethod, ORPOMethod, SimPOMethod


class _Weighted(StrictModel):
    """One loss of a mixture."""

    weight: float = Field(default=1.0, gt=0)
    """Factor on this loss in the sum."""


class DPOPart(_Weighted, DPOMethod):
    """DPO as a part of a mixture."""


class IPOPart(_Weighted, IPOMethod):
    """IPO as a part of a mixture."""


class HingePart(_Weighted, HingeMethod):
    """The hinge loss as a part of a mixture."""


class RobustPart(_Weighted, RobustMethod):
    """Robust DPO as a part of a mixture."""


class EXOPart(_Weighted, EXOMethod):
    """EXO as a part of a mixture."""


class APOZeroPart(_Weighted, APOZeroMethod):
    """APO-zero as a part of a mixture."""


class APODownPart(_Weighted, APODownMethod):
    """APO-down as a part of a mixture."""


class ORPOPart(_Weighted, ORPOMethod):
    """ORPO as a part of a mixture without a reference."""


class SimPOPart(_Weighted, SimPOMethod):
    """SimPO as a part of a mixture without a reference."""


class CPOPart(_Weighted, CPOMethod):
    """CPO as a part of a mixture without a reference."""


class SFTPart(_Weighted):
    """The chosen answer's negative log-likelihood as a part of a mixture: −log π(y_w|x) / |y_w|, mean per token."""

    type: Literal["sft"]
    """The chosen answer's negative log-likelihood per token, which keeps it from falling."""


PreferencePart = (
    DPOPart | IPOPart | HingePart | RobustPart | EXOPart | APOZeroPart | APODownPart | ORPOPart | SimPOPart | CPOPart
)
MixturePart = Annotated[PreferencePart | SFTPart, Field(discriminator="type")]


class MixtureMethod(MethodConfig):
    """A weighted sum of losses on the same pairs: Σ weight · loss, as in MPO (Wang et al. 2024, arXiv:2411.10442).

    Its parts are all such as compare with a reference, or all such as need none; sft goes with both.
    """

    type: Literal["mixture"]
    """A weighted sum of several losses (arXiv:2411.10442)."""

    losses: tuple[MixturePart, ...] = Field(min_length=2)
    """The losses, each with its weight and its own fields."""

    @property
    def leading(self) -> PreferencePart:
        """The first preference loss, by which the implied rewards are reported."""
        return next(loss for loss in self.losses if not isinstance(loss, SFTPart))

    @property
    def beta(self) -> float:
        """That of the leading loss."""
        return self.leading.beta

    @property
    def needs_reference(self) -> bool:
        """Whether its preference losses compare with a reference."""
        return self.leading.needs_reference

    @model_validator(mode="after")
    def _compares_answers(self) -> "MixtureMethod":
        types = [loss.type for loss in self.losses]
        if set(types) == {"sft"}:
            raise ValueError("a mixture of sft alone never reads the rejected answers; add a preference loss")
        twice = sorted({each for each in types if types.count(each) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is in the mixture twice; keep one, with the sum of the weights")
        kinds = {loss.needs_reference: loss.type for loss in self.losses if not isinstance(loss, SFTPart)}
        if len(kinds) > 1:
            raise ValueError(
                f"{kinds[True]} compares with a reference and {kinds[False]} needs none; mix losses of one kind"
            )
        return self
