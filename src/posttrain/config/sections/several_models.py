"""Config of one model, or of several that are trained one after another."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Self

from pydantic import ValidationError, ValidationInfo, model_validator

from posttrain.config.sections.model import ModelConfig
from posttrain.config.sections.run import require_run_name
from posttrain.config.strict import StrictModel
from posttrain.errors import ConfigError


class OneOrSeveralModels(StrictModel):
    """Base of configs that may name `models` in the place of `model`."""

    model: ModelConfig
    """The base model, and in `adapter` where training goes on from, as from an SFT run."""

    models: tuple[ModelConfig, ...] = ()
    """Several models in its place, trained one after another, each in a process and a run directory of its own;
    `--model-index` takes one of them, counted from 0."""

    @model_validator(mode="before")
    @classmethod
    def _first_of_several(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict) or not isinstance(models := data.get("models"), list | tuple) or not models:
            return data
        if "model" in data:
            raise ValueError("give `model`, or several `models`, and not both")
        try:
            first = ModelConfig.model_validate(models[0], context=info.context)
        except ValidationError:
            first = ModelConfig(name="model")  # what is wrong with it is told of `models`
        return {**data, "model": first}

    def of_model(self, index: int | None) -> Self:
        """The config of one of several models, or of the one that there is.

        Raises:
            ConfigError: the index is missing, or there is no such model.
        """
        require_model_index(self.models, index)
        if index is None:
            return self
        model = self.models[index].standing_at(f"models.{index}")
        return self.model_copy(update={"model": model, "models": ()})


def require_model_index(models: Sequence[ModelConfig], index: int | None) -> None:
    """Raise ConfigError unless `index` names one of `models`, or is None where there are none."""
    if not models and index is not None:
        raise ConfigError("--model-index: the config has one model; leave the option out")
    if models and (index is None or not 0 <= index < len(models)):
        there = ", ".join(f"{number} for {label}" for number, label in enumerate(model_labels(models)))
        raise ConfigError(f"--model-index: the config has several models; give {there}")


def run_of_model(name: str, models: Sequence[ModelConfig], index: int | None) -> str:
    """The name of a model's run: `name` itself, and where there are several models a folder in it.

    Raises:
        ConfigError: as `require_model_index` and `require_run_name`.
    """
    require_model_index(models, index)
    require_run_name(name)
    return name if index is None else f"{name}/{model_labels(models)[index]}"


def model_labels(models: Sequence[ModelConfig]) -> list[str]:
    """The last part of each model's id or path, with its index where that is not enough to tell them apart."""
    labels = [PurePath(model.name).name.removesuffix(".gguf").strip(".") or "model" for model in models]
    while len(set(labels)) < len(labels):
        labels = [f"{label}-{index}" if labels.count(label) > 1 else label for index, label in enumerate(labels)]
    return labels
