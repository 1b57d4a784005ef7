"""Step `predict`: the answers of another step's model to a file of prompts."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from posttrain.base.cache import file_digest
from posttrain.base.files import require_file
from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.config.strict import ConfigPath
from posttrain.config.values import OneLine
from posttrain.errors import ConfigError
from posttrain.inference.config import InferenceConfig
from posttrain.pipeline.machine import device_facts
from posttrain.pipeline.steps.base import ConfiguredStep, Job

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context

_ANSWERS = "answers.jsonl"


class PredictStep(ConfiguredStep):
    """Runs `toolkit-predict`."""

    run: Literal["predict"]
    """Answer a file of prompts."""

    model_of: OneLine
    """The step whose model answers, or `base`."""

    prompts: ConfigPath
    """The file of prompts."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The step whose model answers."""
        return (*([] if self.model_of == "base" else [self.model_of]), *super().needs)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for the step whose model answers, and for those whose files it reads."""
        return super().renamed(names).model_copy(update={"model_of": names.get(self.model_of, self.model_of)})

    def job(self, name: str, context: "Context") -> Job:
        """Load the config; ConfigError or DataError if something is wrong."""
        require_file(self.prompts)
        for key in self.set:
            if key.partition(".")[0] not in InferenceConfig.model_fields:
                known = ", ".join(InferenceConfig.model_fields)
                raise ConfigError(f"steps.{name}.set.{key}: this command reads only {known}")
        config = load_config(self.config, InferenceConfig, self.overrides(name, context))
        model = context.model(self.model_of)
        key = {
            "run": "predict",
            "generation": config.generation.model_dump(mode="json", exclude={"devices"}),
            "on_bad_record": config.on_bad_record,
            "prompts": file_digest(self.prompts),
            "model": context.described_model(model),
            "machine": device_facts(),
        }
        return Job(key, to_yaml(config))

    def models_used(self, context: "Context") -> list[str]:
        """The model that answers."""
        return [self.model_of]

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Answer, or go on answering."""
        model = context.model(self.model_of)
        own, output = load_config(config, InferenceConfig), folder / _ANSWERS
        words = [str(model.config), str(self.prompts), str(output), f"--weights={model.weights}"]
        settings = [f"generation={own.generation.model_dump_json()}", f"on_bad_record={own.on_bad_record}"]
        words += [part for each in settings for part in ("--set", each)]
        return [["predict", *words, *(["--overwrite"] if resume and output.exists() else [])]]

    def file_names(self, name: str, context: "Context") -> Collection[str]:
        """The answers."""
        return [_ANSWERS]

    def outputs(self, folder: Path) -> list[Path]:
        """The answers."""
        return [folder / _ANSWERS]
