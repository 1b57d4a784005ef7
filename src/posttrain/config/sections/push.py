"""Config section `run.push`: which repository of a Hugging Face hub gets the checkpoints of a run."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from posttrain.config.keys import shown
from posttrain.config.strict import StrictModel
from posttrain.config.values import OneLine
from posttrain.errors import ConfigError

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
# What git allows, without what a shell or a URL would have to quote.
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STEP = "{step}"


def require_repo(repo: str) -> str:
    """Return the name; ConfigError unless it is one of a repository on a hub, such as `owner/name`."""
    if not _REPO.fullmatch(repo):
        raise ConfigError(f"a repository is named OWNER/NAME, in letters, digits, '-', '_' and '.', not {shown(repo)}")
    return repo


def require_revision(revision: str) -> str:
    """Return the name; ConfigError unless it can be a branch on a hub."""
    if not _REVISION.fullmatch(revision) or ".." in revision or revision.endswith((".", ".lock")):
        raise ConfigError(
            f"a revision is a branch's name in letters, digits, '-', '_' and '.', such as main, not {shown(revision)}"
        )
    return revision


def _has_a_step(pattern: str) -> str:
    if _STEP not in pattern:
        raise ValueError(f"needs {_STEP}, so that each checkpoint has a revision of its own, such as step-{_STEP}")
    require_revision(pattern.replace(_STEP, "1"))
    return pattern


class PushConfig(StrictModel):
    """Send each finished checkpoint to a Hugging Face hub; the token is in `HF_TOKEN`."""

    repo: Annotated[str, AfterValidator(require_repo)]
    """The repository, as OWNER/NAME; it is made if it does not exist."""

    revision: Annotated[str, AfterValidator(_has_a_step)] = "step-{step}"
    """The branch for a checkpoint; `{step}` stands for its optimizer step."""

    public: bool = False
    """Whether everybody may see the repository; an existing public one is refused unless this is true."""

    base_model: OneLine | None = None
    """Hugging Face id of the base, for the adapter and the model card; by default `model.name`, if it is one."""

    license: OneLine | None = None
    """The base's licence in the hub's spelling, such as apache-2.0; by default the one that the base's files name."""

    keep_unpushed: int = Field(default=5, ge=1)
    """How many checkpoints that are not pushed yet stay on disk beyond `keep_checkpoints`; the oldest of more are given
    up."""

    retry_seconds: float = Field(default=600.0, ge=0)
    """How long a checkpoint is tried again while the hub fails; then the next one follows."""

    def revision_of(self, step: int) -> str:
        """The branch for the checkpoint of a step."""
        return self.revision.replace(_STEP, str(step))
