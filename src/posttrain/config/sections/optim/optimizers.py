"""Config of `training.optimizer`: the optimizers by name, what each needs and reads, and one's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator

from posttrain.config.strict import StrictModel, written_as

OptimizerName = Literal[
    "adamw",
    "nadam",
    "radam",
    "adafactor",
    "muon",
    "sgd",
    "adamw_8bit",
    "paged_adamw",
    "paged_adamw_8bit",
    "lion_8bit",
    "schedule_free_adamw",
    "schedule_free_radam",
    "schedule_free_sgd",
]
_CLASS = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
_ADAM = ("beta1", "beta2", "epsilon")


@dataclass(frozen=True)
class OptimizerTraits:
    """An optimizer of a library.

    Attributes:
        path: its module and class.
        state_bytes: bytes of its states per trained weight of a large matrix.
        keys: what it reads of the config section `training`, besides learning rate and weight decay.
        arguments: its arguments that no key is for.
        is_elementwise: whether it updates each weight by itself, and so a share of a matrix as it would the whole.
    """

    path: str
    state_bytes: int
    keys: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_elementwise: bool = False

    @property
    def package(self) -> str:
        """The package that it is in."""
        return self.path.partition(".")[0]


OPTIMIZERS: dict[OptimizerName, OptimizerTraits] = {
    "adamw": OptimizerTraits("torch.optim.AdamW", 8, _ADAM, {"fused": True}, is_elementwise=True),
    "nadam": OptimizerTraits("torch.optim.NAdam", 8, _ADAM, {"decoupled_weight_decay": True}, is_elementwise=True),
    "radam": OptimizerTraits("torch.optim.RAdam", 8, _ADAM, {"decoupled_weight_decay": True}, is_elementwise=True),
    "adafactor": OptimizerTraits("torch.optim.Adafactor", 0),
    # Its updates are scaled to the size of AdamW's, which has the other weights and the same learning rate.
    "muon": OptimizerTraits("torch.optim.Muon", 4, (*_ADAM, "momentum"), {"adjust_lr_fn": "match_rms_adamw"}),
    "sgd": OptimizerTraits("torch.optim.SGD", 0, ("momentum",), is_elementwise=True),
    "adamw_8bit": OptimizerTraits("bitsandbytes.optim.AdamW8bit", 2, _ADAM),
    "paged_adamw": OptimizerTraits("bitsandbytes.optim.PagedAdamW", 8, _ADAM),
    "paged_adamw_8bit": OptimizerTraits("bitsandbytes.optim.PagedAdamW8bit", 2, _ADAM),
    "lion_8bit": OptimizerTraits("bitsandbytes.optim.Lion8bit", 1, ("beta1", "beta2")),
    "schedule_free_adamw": OptimizerTraits("schedulefree.AdamWScheduleFree", 8, _ADAM, is_elementwise=True),
    "schedule_free_radam": OptimizerTraits(
        "schedulefree.RAdamScheduleFree", 8, _ADAM, {"silent_sgd_phase": True}, is_elementwise=True
    ),
    "schedule_free_sgd": OptimizerTraits("schedulefree.SGDScheduleFree", 4, ("momentum",), is_elementwise=True),
}


class OwnOptimizer(StrictModel):
    """Any other class with the interface of `torch.optim.Optimizer`."""

    model_config = ConfigDict(serialize_by_alias=True)

    class_: Annotated[str, written_as(_CLASS, "a package, module and class, such as torch.optim.Adagrad")] = Field(
        alias="class", pattern=_CLASS
    )
    """Its package, module and name, such as `torch.optim.Adagrad`; the code of the package is run."""

    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Its arguments, except `lr`, which is `training.learning_rate`. A `weight_decay` among them is for matrices only,
    as everywhere."""

    @field_validator("arguments")
    @classmethod
    def _rate_is_the_schedules(cls, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name, instead in (("lr", "training.learning_rate"), ("params", "the trained weights")):
            if name in arguments:
                raise ValueError(f"{name} is {instead}; leave it out here")
        return arguments


AnyOptimizer = OptimizerName | OwnOptimizer


def is_schedule_free(optimizer: AnyOptimizer) -> bool:
    """Whether an optimizer of the table averages the weights itself and needs no schedule."""
    return isinstance(optimizer, str) and OPTIMIZERS[optimizer].package == "schedulefree"


def require_keys_are_read(optimizer: AnyOptimizer, changed: Mapping[str, bool]) -> None:
    """Raise ValueError if the optimizer does not read a key of `training` that is not at its default.

    `changed` says so of the keys that only some optimizers read.
    """
    own = isinstance(optimizer, OwnOptimizer)
    read = () if own else ("weight_decay", *OPTIMIZERS[optimizer].keys)
    for key, is_changed in changed.items():
        if is_changed and key not in read:
            what = "your own optimizer reads only optimizer.arguments" if own else f"optimizer: {optimizer} has none"
            raise ValueError(f"{key}: {what}; leave it out")
