"""What the steps of a pipeline know of each other while it is planned: their folders, and the models that they make."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from posttrain.base.files import atomic_write_text
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError
from posttrain.pipeline.machine import packaged_or_hub
from posttrain.pipeline.named_files import file_digests, without_places
from posttrain.pipeline.steps.base import Model, StepConfig

BASE = "base"
"""Name of the model before the first training step."""
CONFIGS = "configs"
"""Folder in the pipeline's for the resolved configs."""
_COUNTING = ("dtype", "quantization", "attention")
"""Settings of a model that change what it answers."""


class Context:
    """Steps, in an order in which each comes after those that it needs, and where their results are or will be.

    Args:
        steps: those that are to run.
        folder: the folder of the pipeline.
        skipped: steps that do not run.
        all_steps: those of the whole config, if not all are to run.
    """

    def __init__(
        self,
        steps: Mapping[str, StepConfig],
        folder: Path,
        skipped: frozenset[str] = frozenset(),
        all_steps: Mapping[str, StepConfig] | None = None,
    ) -> None:
        self.steps, self.folder, self.all_steps = steps, folder, all_steps or steps
        self.skipped = skipped | {name for name, step in self.all_steps.items() if not step.enabled}
        self._places: dict[str, Path] = {}
        self._digests: dict[str, str] = {}
        self._models: dict[str, Model] = {}

    def leave_out(self, name: str) -> None:
        """Go on as if a step were skipped."""
        self.skipped |= {name}
        self._models.clear()

    def place(self, name: str, folder: Path, digest: str | None) -> None:
        """Say where the results of a step are or will be, and their digest if they are there.

        Until then its folder is one that does not exist.
        """
        self._places[name] = folder
        self._models.pop(name, None)
        if digest is not None:
            self._digests[name] = digest

    def digest(self, name: str) -> str | None:
        """The digest of what a step made, or of where it would have started if it is skipped; None if not known yet."""
        if name in self.skipped:
            start = self.all_steps[name].starts_from
            return BASE if start in (None, BASE) else self.digest(start)
        return self._digests.get(name)

    def step_folder(self, name: str) -> Path:
        """The folder of a step."""
        return self._places.get(name, self.folder / f"{name}-pending")

    def is_promised(self, path: str | Path) -> bool:
        """Whether a step makes what is at a path."""
        return self.folder in Path(path).parents

    def config_file(self, folder: Path) -> Path:
        """The file for the resolved config of the step in `folder`."""
        return self.folder / CONFIGS / f"{folder.name}.yaml"

    def model_file(self, folder: Path) -> Path:
        """The file that names the model in `folder`, for a step that makes one without a config of its own."""
        return self.folder / CONFIGS / f"{folder.name}.model.yaml"

    def write_model(self, name: str) -> None:
        """Write the config that names the model of a step, if it has no config of its own."""
        model = self.model(name)
        if model.config.parent == self.model_file(self.folder).parent:
            model.config.parent.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump({key: dict(section) for key, section in model.sections.items()}, sort_keys=False)
            atomic_write_text(model.config, text)

    def model(self, name: str) -> Model:
        """The model that a step makes or, if the step is skipped, the one that it would have started from.

        Raises:
            ConfigError: the step makes no model.
        """
        if name == BASE:
            return self.base()
        if name in self._models:
            return self._models[name]
        step = self.all_steps[name]
        if name not in self.skipped:
            model = step.model(self.step_folder(name), self)
        elif step.starts_from is not None:
            model = self.model(step.starts_from)
        else:
            model = step.start_model(self)
        if model is None:
            raise ConfigError(f"steps.{name} makes no model")
        if name in self._places:  # and so are the steps that it needs
            self._models[name] = model
        return model

    def base(self) -> Model:
        """The model that the first training step of the config starts from."""
        for step in self.all_steps.values():
            if (model := step.start_model(self)) is not None:
                return model
        raise ConfigError("no step trains a model, so there is no base")

    def described_model(self, model: Model) -> dict[str, Any]:
        """What a model is, for a key; what a step makes is described by the step's digest, elsewhere in the key."""
        section = model.sections["model"]
        settings = {name: section[name] for name in _COUNTING}
        base = ModelConfig.model_validate({"name": model.base, "revision": section["revision"]})
        adapter = None if model.adapter is None or self.is_promised(model.adapter) else model.adapter
        named = base.model_copy(update={"adapter": adapter})
        return {
            "model": self.described([model.base, model.adapter, model.text]),
            "settings": settings,
            "weights": None if self.is_promised(model.base) else packaged_or_hub(base),
            "files": file_digests(named, self.is_promised),
        }

    def described(self, value: Any) -> Any:
        """Plain data without places, for a key: the folder of each step is replaced by its name."""
        return without_places(value, {str(self.step_folder(name)): name for name in self.steps})
