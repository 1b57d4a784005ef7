"""Launches that cut a model into pieces, which preference training does not know."""

from toolkit.core.runs import sharding


def require_whole_model() -> None:
    """Raise ConfigError where `accelerate launch` was told to shard the model.

    The log-probabilities of the reference, its weights and their digest are taken from a model that is whole.
    """
    sharding.require_whole_model("toolkit-dpo")
