"""Set up the trainings of the real commands in this process, so that a test can change them before they start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posttrain.models.backend import LoadedModel
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import ResumePoint, RunCounters
from posttrain.train.parallel.ranks import connect
from posttrain.train.session import Session


def start() -> ResumePoint:
    """The resume point of a new run."""
    return ResumePoint(None, RunCounters())


@dataclass
class Training:
    """A training that is ready to start."""

    session: Session
    data: Any
    loaded: LoadedModel
    recipe: Any
    accelerator: Any

    @property
    def model(self) -> Any:
        return self.loaded.model

    @property
    def run(self) -> RunDirectory:
        return self.session.run

    def train(self) -> None:
        """Train to the end."""
        self.session.train(self.recipe, self.accelerator, self.loaded, start())


def sft(config: Any, folder: Any) -> Training:
    """An SFT run in the given folder."""
    from posttrain.conversation.encoder import conversation_encoder
    from posttrain.sft.recipe import SFTRecipe
    from posttrain.sft.train import open_session

    session, data = open_session(config, RunDirectory(folder))
    loaded = _loaded(session)
    accelerator = connect()
    recipe = SFTRecipe(config, data, loaded, accelerator, conversation_encoder(config.chat, loaded.tokenizer).end_ids)
    return Training(session, data, loaded, recipe, accelerator)


def dpo(config: Any, folder: Any, change: Callable[[Any], Any] | None = None) -> Training:
    """A preference optimisation run in the given folder; `change` can replace its data."""
    from posttrain.dpo.recipe import DPORecipe
    from posttrain.dpo.train import open_session

    session, data = open_session(config, RunDirectory(folder))
    data = change(data) if change else data
    loaded = _loaded(session)
    accelerator = connect()
    return Training(session, data, loaded, DPORecipe(config, data, loaded, accelerator), accelerator)


def _loaded(session: Session) -> LoadedModel:
    """Load the session's model; what the test does with it is not subject to the session's error handling."""
    with session.model(start(), resume=False) as loaded:
        return loaded
