"""Step `push`: what another step trained, on a Hugging Face hub."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator

from posttrain.base.files import atomic_write_text
from posttrain.config.sections.push import require_repo, require_revision
from posttrain.config.values import OneLine
from posttrain.errors import ConfigError
from posttrain.pipeline.steps.base import Job, StepConfig

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context

_PUSHED = "pushed.json"


class PushStep(StepConfig):
    """Runs `toolkit-push`."""

    run: Literal["push"]
    """Send a model to a Hugging Face hub, with a card; the token is in `HF_TOKEN`."""

    of: OneLine
    """The step that trained what is sent."""

    repo: Annotated[str, AfterValidator(require_repo)]
    """The repository, as OWNER/NAME; it is made if it does not exist."""

    revision: Annotated[str, AfterValidator(require_revision)] = "main"
    """The branch, which is made if it does not exist."""

    public: bool = False
    """Whether everybody may see the repository; an existing public one is refused unless this is true."""

    base_model: OneLine | None = None
    """Hugging Face id of the base; by default `model.name`, if it is one."""

    license: OneLine | None = None
    """The base's licence in the hub's spelling, such as apache-2.0; by default the one that the base's files name."""

    scores: OneLine | None = None
    """The `eval` step whose results go on the card; null puts none on it."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The step whose model is sent, and the one that measured it."""
        return (self.of, *([] if self.scores is None else [self.scores]))

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for these."""
        found = {"of": names.get(self.of, self.of), "scores": self.scores and names.get(self.scores, self.scores)}
        return self.model_copy(update=found)

    def job(self, name: str, context: "Context") -> Job:
        """Check the model, and ask the hub whether the token may write there.

        Raises:
            ConfigError: the step trained nothing, or the token or the repository is refused.
            ServerError: the hub cannot be reached.
        """
        from posttrain.hub.repository import Repository, Target

        if context.model(self.of).weights != "adapter":
            raise ConfigError(f"steps.{name}.of: {self.of} has trained nothing itself; name the step that did")
        Repository(Target(self.repo, self.revision, self.public)).check()
        return Job({"run": "push", **self.model_dump(mode="json", exclude={"enabled", "launch", "of", "scores"})})

    def models_used(self, context: "Context") -> list[str]:
        """The model that is sent."""
        return [self.of]

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Send it; what is there already is not sent again."""
        options = {
            "--revision": self.revision,
            "--base": self.base_model,
            "--license": self.license,
            "--evaluation": None if self.scores is None else str(context.step_folder(self.scores)),
        }
        words = [f"{option}={value}" for option, value in options.items() if value is not None]
        words += ["--public"] if self.public else []
        return [["push", str(context.model(self.of).config), self.repo, *words]]

    def make(self, folder: Path, context: "Context") -> None:
        """Write where it was sent."""
        folder.mkdir(parents=True, exist_ok=True)
        sent = {"repo": self.repo, "revision": self.revision, "digest": context.digest(self.of)}
        atomic_write_text(folder / _PUSHED, json.dumps(sent, indent=2) + "\n")

    def outputs(self, folder: Path) -> list[Path]:
        """Where it was sent."""
        return [folder / _PUSHED]
