"""What the steps that train have in common: where their model starts, and what they leave."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from posttrain.base.text import clipped
from posttrain.config.dump import to_yaml
from posttrain.config.load import Override, load_config
from posttrain.config.sections.datasets import PathConfig
from posttrain.config.sections.model import LoraConfig
from posttrain.config.strict import StrictModel
from posttrain.config.values import OneLine
from posttrain.errors import ConfigError
from posttrain.evaluate.config import EvalConfig
from posttrain.hub.check import require_push
from posttrain.pipeline.machine import device_facts, packaged_or_hub
from posttrain.pipeline.named_files import file_digests
from posttrain.pipeline.overlap import Prompts, prompts_in
from posttrain.pipeline.resolved import eval_facts, task_prompts
from posttrain.pipeline.steps.base import ConfiguredStep, Job, Model, replaced
from posttrain.runs.checks import require_data_files, require_room_for_run

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context

_EXPORTED = ("*.safetensors", "adapter_config.json", "config.json", "tokenizer.json", "chat_template.jinja")
# Keys of `run` that change nothing in what is trained.
_OF_NO_RESULT = ("output_dir", "name", "trackers", "push", "keep_checkpoints", "stop_seconds")
# What cannot change while an adapter is trained further.
_SHAPE = ("r", "alpha", "target_modules", "rslora", "dora", "init")


class StartConfig(StrictModel):
    """The step whose model is trained further."""

    from_: OneLine = Field(alias="from")
    """The step."""

    as_: Literal["auto", "adapter", "merged"] = Field(default="auto", alias="as")
    """`adapter` trains the step's adapter further, `merged` starts a new one on the model with the adapter merged in;
    `auto` is `adapter` if the step trained one. What trained all weights is always started from as it is."""


class TrainingStep(ConfiguredStep):
    """A step that trains a model."""

    start: StartConfig | None = None
    """The step whose model is trained; null trains the config's own model."""

    chat_may_differ: bool = False
    """Allow another template, system message or length than in the step that is started from."""

    program: ClassVar[str]
    """The command that trains, without `toolkit-`."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The step that it starts from, and those whose files it reads."""
        return (*([] if self.start is None else [self.start.from_]), *super().needs)

    @property
    def starts_from(self) -> str | None:
        """The step that it starts from."""
        return None if self.start is None else self.start.from_

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for the step that it starts from, and for those whose files it reads."""
        if self.start is None:
            return super().renamed(names)
        name = names.get(self.start.from_, self.start.from_)
        start = None if name == "base" else self.start.model_copy(update={"from_": name})
        return super().renamed(names).model_copy(update={"start": start})

    def read(self, overrides: list[Override]) -> Any:
        """Load the command's config."""
        raise NotImplementedError

    def named_configs(self, config: Any) -> dict[str, Any]:
        """What other configs say that the config names, by its key; ConfigError if one is wrong."""
        tasks = None if config.evaluation is None else config.evaluation.tasks
        return {} if tasks is None else {"evaluation.tasks": eval_facts(load_config(tasks, EvalConfig))}

    def job(self, name: str, context: "Context") -> Job:
        """Load the config with its start applied.

        Raises:
            ConfigError: it is wrong, or its base, adapter or chat format does not fit the step that it starts from.
        """
        config = self._started(name, context)
        self.require_data(config, context)
        require_room_for_run(config.run)
        require_push(config)
        dump = config.model_dump(mode="json")
        for key in _OF_NO_RESULT:
            del dump["run"][key]
        key = {
            "run": self.program,
            "config": context.described(dump),
            "files": file_digests(config, context.is_promised),
            "configs": self.named_configs(config),
            "weights": packaged_or_hub(config.model),
            "machine": device_facts(),
        }
        return Job(key, to_yaml(config))

    def trained(self, name: str, context: "Context") -> Prompts:
        """The prompts of all data sets; those of a file of which a share is held out are all taken for trained."""
        config = self.read(self.overrides(name, context))
        for key, source in config.data_sources().items():
            if not key.startswith("validation."):
                yield from _prompts_of(source)

    def held_out(self, name: str, context: "Context") -> Prompts:
        """The prompts of held-out data sets, and those that are answered during training."""
        config = self.read(self.overrides(name, context))
        for key, source in config.data_sources().items():
            if key.startswith("validation."):
                yield from _prompts_of(source)
        if config.evaluation is not None and config.evaluation.tasks is not None:
            yield from task_prompts(load_config(config.evaluation.tasks, EvalConfig))

    def require_data(self, config: Any, context: "Context") -> None:
        """Raise DataError if a file of data is not there that no step makes."""
        sources = config.data_sources().items()
        require_data_files({key: each for key, each in sources if not context.is_promised(each.path)})

    def _started(self, name: str, context: "Context") -> Any:
        overrides = self.overrides(name, context)
        if self.start is None:
            return self.read(overrides)
        own = self.read(overrides)
        start = self._start(context)
        assert start is not None
        if start.adapter is not None and own.lora is not None and own.lora != LoraConfig():
            self._require_shape(name, own.lora, start)
        if not self.chat_may_differ:
            self._require_same_text(name, _own_model(own, self.config), start)
        values: dict[str, Any] = {"model.name": start.base, "model.adapter": start.adapter and str(start.adapter)}
        if start.adapter is not None:
            values["lora"] = {}
        return self.read([*overrides, *replaced(name, "start", values)])

    def _start(self, context: "Context") -> Model | None:
        return None if self.start is None else context.model(self.start.from_)

    def _require_shape(self, name: str, lora: LoraConfig, start: Model) -> None:
        wanted, there = lora.model_dump(mode="json"), start.lora or {}
        different = [key for key in _SHAPE if key in there and wanted[key] != there[key]]
        if different:
            raise ConfigError(
                f"steps.{name}.start: the adapter that it starts from has another {different[0]} than {self.config}; "
                "leave its lora section out, or start with `as: merged`"
            )

    def _require_same_text(self, name: str, own: Model, start: Model) -> None:
        for key, value in start.text.items():
            if own.text[key] != value:
                mine, other = (clipped(repr(each)) for each in (own.text[key], value))
                raise ConfigError(
                    f"steps.{name}.start: {key} is {mine} in {self.config}, but {other} in the step that "
                    "it starts from; make them equal, or say chat_may_differ: true"
                )

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Train, or go on with training."""
        where = ["--set", f"run.output_dir={json.dumps(str(folder.parent))}", f"--run-name={folder.name}"]
        begun = resume and (folder / "manifest.json").is_file()
        return [[self.program, str(config), *where, *(["--resume"] if begun else [])]]

    def outputs(self, folder: Path) -> list[Path]:
        """The exported weights, their config and tokenizer."""
        return sorted({path for pattern in _EXPORTED for path in folder.glob(pattern)})

    def further_files(self, folder: Path) -> list[Path]:
        """The run's own config, and its numbers."""
        return [folder / "config.yaml", folder / "result.json"]

    def model(self, folder: Path, context: "Context") -> Model:
        """The trained model, which need not be there yet."""
        own, start = self.read(self.overrides("", context)), self._start(context)
        config = folder / "config.yaml"
        if start is not None and start.adapter is not None:
            return replace(start, adapter=folder, config=config, weights="adapter")
        made = _own_model(own, config)
        base = made.base if start is None else start.base
        if own.model.adapter is None and own.lora is None:
            return replace(made, base=str(folder), adapter=None, weights="adapter")
        return replace(made, base=base, adapter=folder, weights="adapter")

    def start_model(self, context: "Context") -> Model | None:
        """The config's own model, if the step starts from no other."""
        if self.start is not None:
            return None
        own = self.read(self.overrides("", context))
        return _own_model(own, context.model_file(context.folder / "base"))


def _own_model(training: Any, config: Path) -> Model:
    """The model that a training config names, without what is trained."""
    sections = {key: getattr(training, key).model_dump(mode="json") for key in ("model", "chat")}
    lora = None if training.lora is None else training.lora.model_dump(mode="json")
    return Model(training.model.name, training.model.adapter, config, "base", sections, lora)


def _prompts_of(source: PathConfig) -> Prompts:
    return prompts_in(source.path, source.split, getattr(source, "columns", None), getattr(source, "format", "auto"))
