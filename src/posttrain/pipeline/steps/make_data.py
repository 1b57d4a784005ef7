"""Step `data`: answers of another step's model that are worth training on."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.config.values import OneLine
from posttrain.dataserver.config.prompts import DataserverPromptsConfig
from posttrain.pipeline.machine import device_facts
from posttrain.pipeline.named_files import file_digests, without_places
from posttrain.pipeline.overlap import Prompts, prompts_in, served_prompts
from posttrain.pipeline.resolved import dataserver_facts
from posttrain.pipeline.steps.base import ConfiguredStep, Job, replaced
from posttrain.synthesis.config import DataConfig, control_name

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context


class DataStep(ConfiguredStep):
    """Runs `toolkit-data run`."""

    run: Literal["data"]
    """Sample answers, grade them, and keep those worth training on."""

    model_of: OneLine
    """The step whose model answers, or `base`."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The step whose model answers, and those whose files are read."""
        return (*([] if self.model_of == "base" else [self.model_of]), *super().needs)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for the step whose model answers, and for those whose files it reads."""
        return super().renamed(names).model_copy(update={"model_of": names.get(self.model_of, self.model_of)})

    def _read(self, name: str, context: "Context") -> DataConfig:
        model = context.model(self.model_of)
        chosen = {"model": {"config": str(model.config), "weights": model.weights}}
        return load_config(
            self.config, DataConfig, [*self.overrides(name, context), *replaced(name, "model_of", chosen)]
        )

    def job(self, name: str, context: "Context") -> Job:
        """Load the config with the model; ConfigError or DataError if something is wrong."""
        config, model = self._read(name, context), context.model(self.model_of)
        dump = config.model_dump(mode="json", exclude={"output", "model"})
        del dump["sample"]["devices"]
        served = None
        if isinstance(config.prompts, DataserverPromptsConfig):
            served = dataserver_facts(config.prompts.config)
            del dump["prompts"]["config"]
        files = {key: digest for key, digest in file_digests(config).items() if not key.startswith("model.")}
        key = {
            "run": "data",
            "config": without_places(dump),
            "files": files,
            "served": served,
            "model": context.described_model(model),
            "machine": device_facts(),
        }
        return Job(key, to_yaml(config))

    def trained(self, name: str, context: "Context") -> Prompts:
        """The prompts that are asked."""
        prompts = self._read(name, context).prompts
        if isinstance(prompts, DataserverPromptsConfig):
            return served_prompts(prompts.config, prompts.dataset, prompts.split)
        return prompts_in(prompts.path, "train", prompts.columns, prompts.format)

    def models_used(self, context: "Context") -> list[str]:
        """The model that answers."""
        return [self.model_of]

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Sample, grade and keep; what was answered before is not asked again."""
        return [["data", "run", str(config), "--set", f"output={json.dumps(str(folder))}"]]

    def file_names(self, name: str, context: "Context") -> Collection[str]:
        """The files of kept rows."""
        paths = [kept.path for kept in self._read(name, context).keep]
        return [*paths, *map(control_name, paths)]

    def outputs(self, folder: Path) -> list[Path]:
        """The kept rows."""
        return sorted(folder.glob("*.jsonl"))
