"""Session fixtures shared by the tests in this folder: the forking process and undisturbed runs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from dataserver.serving import serving
from faults.forked import ForkedCommands
from faults.trainings import ROLLOUTS, LeftAlone, leave_alone, training_of
from rl.rl_runs import write_run as write_rl_run


@pytest.fixture(scope="session")
def commands(users_cache: str | None) -> Iterator[ForkedCommands]:
    """Runs the toolkit's commands, with no time spent on imports."""
    with ForkedCommands() as forking:
        yield forking


@pytest.fixture(scope="session")
def left_alone(
    commands: ForkedCommands, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], LeftAlone]]:
    """`left_alone(kind)` returns an undisturbed run of that kind, trained on first use."""
    with ExitStack() as stack:

        @cache
        def dataserver() -> str:
            config = write_rl_run(tmp_path_factory.mktemp("dataserver"), tiny_model).with_name("data.yaml")
            return stack.enter_context(serving(config)).url

        @cache
        def of(kind: str) -> LeftAlone:
            training = training_of(kind, tiny_model, dataserver() if kind in ("rl", *ROLLOUTS) else None)
            return leave_alone(commands, training, tmp_path_factory.mktemp("left_alone"))

        yield of
