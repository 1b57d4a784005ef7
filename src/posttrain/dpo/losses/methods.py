"""The preference optimisation methods that a config's `method` section chooses from, and mixtures of them."""

from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args

from pydantic import Field, create_model, model_validator

from posttrain.config.strict import StrictModel, type_by_default
from posttrain.dpo.losses.anchored import APODownMethod, APOZeroMethod
from posttrain.dpo.losses.base import PairMethod, SequenceScores, Tensor
from posttrain.dpo.losses.kto import KTOMethod
from posttrain.dpo.losses.logistic import DPOMethod, EXOMethod, RobustMethod
from posttrain.dpo.losses.margin import HingeMethod, IPOMethod
from posttrain.dpo.losses.reference_free import CPOMethod, ORPOMethod, SimPOMethod

_Compared = DPOMethod | IPOMethod | HingeMethod | RobustMethod | EXOMethod | APOZeroMethod | APODownMethod
_ReferenceFree = ORPOMethod | SimPOMethod | CPOMethod


class _Weighted(StrictModel):
    """One loss of a mixture."""

    weight: float = Field(default=1.0, gt=0)
    """Weight of this loss in the sum."""


class SFTPart(_Weighted):
    """Negative log-likelihood of the chosen answer as part of a mixture: −log π(y_w|x) / |y_w|, mean per token."""

    type: Literal["sft"]
    """Negative log-likelihood of the chosen answer per token, which keeps its likelihood from falling."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above, shape [pairs]."""
        return -scores.chosen_mean


if TYPE_CHECKING:

    class _PreferencePart(_Weighted, PairMethod):
        """Any paired method with a weight."""

        type: str
        beta: float

    MixturePart = _PreferencePart | SFTPart
else:

    def _part(method: type[PairMethod]) -> type[_Weighted]:
        (kind,) = get_args(method.model_fields["type"].annotation)
        name = f"{method.__name__.removesuffix('Method')}Part"
        return create_model(name, __base__=(_Weighted, method), __doc__=f"{kind} as a part of a mixture.")

    _PARTS = [_part(method) for method in get_args(_Compared | _ReferenceFree)]
    MixturePart = Annotated[Union[(*_PARTS, SFTPart)], Field(discriminator="type")]


class MixtureMethod(PairMethod):
    """A weighted sum of losses on the same pairs: Σ weight · loss, as in MPO (Wang et al. 2024, arXiv:2411.10442,
    eq. 3).

    Either all its parts compare with a reference, or none of them does; sft fits both.
    """

    type: Literal["mixture"]
    """A weighted sum of several losses (arXiv:2411.10442)."""

    losses: tuple[MixturePart, ...] = Field(min_length=2)
    """The losses, each with its weight and its own fields."""

    @property
    def leading(self) -> "_PreferencePart":
        """The first preference loss, whose implied rewards are reported."""
        return next(part for part in self.losses if not isinstance(part, SFTPart))

    @property
    def beta(self) -> float:
        """β of the leading loss."""
        return self.leading.beta

    @property
    def needs_reference(self) -> bool:
        """Whether its preference losses compare with a reference."""
        return self.leading.needs_reference

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        return sum(part.weight * part.loss(scores) for part in self.losses)

    def rewarded(self, scores: SequenceScores) -> tuple[Tensor, Tensor]:
        """The unscaled rewards of the leading loss."""
        return self.leading.rewarded(scores)

    @model_validator(mode="after")
    def _compares_answers(self) -> "MixtureMethod":
        types = [part.type for part in self.losses]
        if set(types) == {"sft"}:
            raise ValueError("a mixture of sft alone never reads the rejected answers; add a preference loss")
        twice = sorted({each for each in types if types.count(each) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is in the mixture twice; keep one, with the sum of the weights")
        kinds = {part.needs_reference: part.type for part in self.losses if not isinstance(part, SFTPart)}
        if len(kinds) > 1:
            raise ValueError(f"{kinds[True]} needs a reference and {kinds[False]} does not; mix losses of one kind")
        return self


AnyMethod = Annotated[
    Annotated[_Compared | KTOMethod | _ReferenceFree | MixtureMethod, Field(discriminator="type")],
    type_by_default("dpo"),
]
"""The optimisation method; dpo if no type is given."""
