"""Merges of a small finished run, as they are killed, interrupted and starved of room."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.forked import After, Ended, ForkedCommands, Happening


@dataclass(frozen=True)
class Merge:
    """A copy of a finished run that is merged; `run` is as this process sees it."""

    commands: ForkedCommands
    folder: Path
    source: Path

    def __post_init__(self) -> None:
        shutil.copytree(self.source, self.run)

    @property
    def run(self) -> Path:
        return self.commands.seen(self.folder) / "run"

    @property
    def merged(self) -> Path:
        return self.run / "merged"

    @property
    def command(self) -> tuple[str | Path, ...]:
        return ("toolkit-merge", self.folder / "run" / "config.yaml", "--no-verify")

    def start(self, *options: str, happenings: Sequence[Happening | After] = ()) -> Ended:
        """The command, once."""
        return self.commands.run(*self.command, *options, watched=self.folder, happenings=happenings)

    def finish_as_told(self) -> None:
        """Start the command again, and once more with what its message asks for."""
        ended = self.start()
        if ended.code == 2:
            assert "replace it with --overwrite" in ended.error
            ended = self.start("--overwrite")
        assert ended.code == 0, ended.said
