"""What the steps of a pipeline know of each other while it is planned: their folders, and the models that they make."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from posttrain.base.files import atomic_write_text
from posttrain.errors import ConfigError
from posttrain.pipeline.named_files import without_places
from posttrain.pipeline.steps.base import Model, StepConfig

BASE = "base"
"""Name of the model before the first training step."""


class Context:
    """Steps, in an order in which each comes after those that it needs, and where their results are or will be.

    Args:
        folder: the folder of the pipeline.
        skipped: steps that do not run.
    """

    def __init__(self, steps: Mapping[str, StepConfig], folder: Path, skipped: frozenset[str] = frozenset()) -> None:
        self.steps, self.folder = steps, folder
        self.skipped = skipped | {name for name, step in steps.items() if not step.enabled}
        self._places: dict[str, Path] = {}
        self._digests: dict[str, str] = {}

    def leave_out(self, name: str) -> None:
        """Go on as if a step were skipped."""
        self.skipped |= {name}

    def place(self, name: str, folder: Path, digest: str | None) -> None:
        """Say where the results of a step are or will be, and their digest if they are there.

        Until then its folder is one that does not exist.
        """
        self._places[name] = folder
        if digest is not None:
            self._digests[name] = digest

    def digest(self, name: str) -> str | None:
        """The digest of what a step made, or of where it would have started if it is skipped; None if not known yet."""
        if name in self.skipped:
            start = next(iter(self.steps[name].needs), None)
            return BASE if start is None else self.digest(start)
        return self._digests.get(name)

    def step_folder(self, name: str) -> Path:
        """The folder of a step."""
        return self._places.get(name, self.folder / f"{name}-pending")

    def is_promised(self, path: str | Path) -> bool:
        """Whether a step makes what is at a path."""
        return str(path).startswith(f"{self.folder}/")

    def config_file(self, folder: Path) -> Path:
        """The file for the resolved config of the step in `folder`."""
        return self.folder / "configs" / f"{folder.name}.yaml"

    def model_file(self, folder: Path) -> Path:
        """The file that names the model in `folder`, for a step that makes one without a config of its own."""
        return self.folder / "configs" / f"{folder.name}.model.yaml"

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
        step = self.steps[name]
        if name in self.skipped:
            start = step.needs[0] if step.needs else None
            return self.model(start) if start is not None else self.base()
        model = step.model(self.step_folder(name), self)
        if model is None:
            raise ConfigError(f"steps.{name} makes no model")
        return model

    def base(self) -> Model:
        """The model that the first training step starts from."""
        for step in self.steps.values():
            if (model := step.start_model(self)) is not None:
                return model
        raise ConfigError("no step trains a model, so there is no base")

    def described(self, value: Any) -> Any:
        """Plain data without places, for a key: the folder of each step is replaced by its name."""
        return without_places(value, {str(self.step_folder(name)): name for name in self.steps})
