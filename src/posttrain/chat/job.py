"""What a chat needs to begin: who answers, how, and where runs may be training; nothing is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from posttrain.config.errors import find_problems
from posttrain.config.keys import dotted
from posttrain.config.load import apply_override, parse_override
from posttrain.config.sections.answerers import Weights
from posttrain.config.sections.generation import GenerationConfig, SamplingConfig
from posttrain.errors import ConfigError
from posttrain.inference.config import InferenceConfig, load_inference_config
from posttrain.inference.weights import ChosenWeights, choose_weights


class ChatSettings(SamplingConfig):
    """How answers are sampled in a chat."""

    seed: int = Field(default=0, ge=0)
    """Seed for sampling."""

    @classmethod
    def of(cls, generation: GenerationConfig) -> "ChatSettings":
        """Those of a config."""
        return cls(**{name: getattr(generation, name) for name in cls.model_fields})

    def with_text(self, text: str) -> "ChatSettings":
        """Those with one changed, as `--set` would; ConfigError if it is unknown or its value is wrong."""
        try:
            override = parse_override(text)
        except ConfigError as error:
            raise ConfigError(
                str(error).replace("--set training.seed=1", "/set seed=1").replace("--set", "/set")
            ) from None
        data = self.model_dump()
        apply_override(data, override)
        try:
            return ChatSettings.model_validate(data)
        except ValidationError as error:
            problems = find_problems(error, ChatSettings, data)
            raise ConfigError("; ".join(f"{dotted(each.path)}: {each.text}" for each in problems)) from None

    def __str__(self) -> str:
        return ", ".join(f"{name}={list(value) if name == 'stop' else value}" for name, value in self)


@dataclass(frozen=True)
class Candidate:
    """A model that is to answer: its name in the chat, its weights, and how its config generates."""

    name: str
    weights: ChosenWeights
    generation: GenerationConfig


@dataclass(frozen=True)
class ChatJob:
    """Who answers, how, and where runs may be training."""

    candidates: Sequence[Candidate]
    settings: ChatSettings
    system: str | None
    output_dirs: Sequence[Path]


@dataclass(frozen=True)
class Choice:
    """A config and which of its weights are meant, as the command line has them."""

    config: Path
    weights: Weights = "auto"
    checkpoint: str | None = None
    run_name: str | None = None
    model_index: int | None = None
    overrides: Sequence[str] = ()

    def candidate(self, given: InferenceConfig) -> Candidate:
        """The model, named after the config's file and the weights that were asked for; errors as `choose_weights`."""
        which = {"checkpoint": self.checkpoint, "run_name": self.run_name, "model_index": self.model_index}
        chosen = choose_weights(self.config, self.weights, **which, overrides=self.overrides)
        name = self.config.stem if self.weights == "auto" else f"{self.config.stem} {self.weights}"
        return Candidate(name, chosen, given.generation)


def chat_job(choices: Sequence[Choice], system: str | None) -> ChatJob:
    """The job of a command line; the first choice says how answers are sampled.

    Raises:
        ConfigError, ModelError: a config is wrong, or there are no such weights.
    """
    given = [load_inference_config(choice.config, choice.overrides) for choice in choices]
    candidates = [choice.candidate(config) for choice, config in zip(choices, given, strict=True)]
    folders = sorted({config.run.output_dir for config in given})
    return ChatJob(candidates, ChatSettings.of(given[0].generation), system, folders)
