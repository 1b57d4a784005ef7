"""The methods of preference optimisation: one of them is what a config's section `method` is."""

from typing import Annotated

from pydantic import BeforeValidator, Field

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
from posttrain.dpo.config.mixtures import MixtureMethod
from posttrain.dpo.config.reference_free_methods import CPOMethod, ORPOMethod, SimPOMethod


def _dpo_by_default(value: object) -> object:
    return {"type": "dpo", **value} if isinstance(value, dict) and "type" not in value else value


AnyMethod = Annotated[
    Annotated[
        DPOMethod
        | IPOMethod
        | HingeMethod
        | RobustMethod
        | EXOMethod
        | APOZeroMethod
        | APODownMethod
        | KTOMethod
        | ORPOMethod
        | SimPOMethod
        | CPOMethod
        | MixtureMethod,
        Field(discriminator="type"),
    ],
    BeforeValidator(_dpo_by_default),
]
"""What is optimised; dpo where no type is given."""
