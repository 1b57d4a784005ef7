"""toolkit-pipeline, killed at any file operation, ends with the same command as if it had been left alone."""

import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from faults.forked import After, Ended, ForkedCommands, Happening
from faults.kills import THOROUGH, contents, moments
from pipeline.pipeline_cases import write_commands

_TIMES = ("started", "seconds", "mtime_ns")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of three programs; `folder` is a path of the commands."""

    commands: ForkedCommands
    folder: Path

    def __post_init__(self) -> None:
        seen = self.commands.seen(self.folder)
        seen.mkdir(parents=True)
        write_commands(seen)

    def start(self, *happenings: Happening | After) -> Ended:
        """Run the command once."""
        words = ["toolkit-pipeline", self.folder / "chain.yaml"]
        return self.commands.run(*words, watched=self.folder, happenings=happenings)

    @property
    def left(self) -> dict[str, Any]:
        """What the steps made, and the records without times; reports say which steps ran in the last command."""
        found = contents(self.commands.seen(self.folder))
        return {
            path: _timeless(json.loads(data)) if data and path.endswith(".json") else data
            for path, data in found.items()
            if path.startswith("runs/") and "report." not in path
        }


def _timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _TIMES}
    return value


@pytest.fixture(scope="module")
def undisturbed(commands: ForkedCommands, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Ended]:
    pipeline = Pipeline(commands, tmp_path_factory.mktemp("left_alone") / "task")
    ended = pipeline.start()
    assert ended.code == 0, ended.said
    return pipeline.left, ended


@pytest.mark.long
def test_wherever_a_pipeline_is_killed_it_ends_as_if_left_alone(
    undisturbed: tuple[dict[str, Any], Ended], commands: ForkedCommands, tmp_path_factory: pytest.TempPathFactory
) -> None:
    left, ended = undisturbed

    @settings(THOROUGH, max_examples=20)
    @given(st.lists(moments(ended, "SIGKILL"), min_size=1, max_size=3))
    def holds(happenings: list[Happening | After]) -> None:
        pipeline = Pipeline(commands, tmp_path_factory.mktemp("killed") / "task")
        note(f"in {pipeline.folder}")
        for each in happenings:
            found = pipeline.start(each)
            assume(each is not happenings[0] or not found.too_late)
            assert found.code in (-signal.SIGKILL, 0), found.said
        assert pipeline.start().code == 0
        assert pipeline.left == left
        shutil.rmtree(commands.seen(pipeline.folder))

    holds()


def test_a_pipeline_killed_at_each_record_goes_on(
    undisturbed: tuple[dict[str, Any], Ended], commands: ForkedCommands, tmp_path: Path
) -> None:
    left, ended = undisturbed
    pipeline = Pipeline(commands, tmp_path / "task")
    records = [each for each in dict.fromkeys(ended.operations) if each.startswith("rename") and ".steps" in each]
    assert len(records) == 3
    for operation in records:
        assert pipeline.start(Happening(operation)).code == -signal.SIGKILL
    assert pipeline.start().code == 0
    assert pipeline.left == left
