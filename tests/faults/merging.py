"""Merges of a small finished run, for tests that kill them, interrupt them or fill their disk."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.forked import After, Ended, ForkedCommands, Happening


@dataclass(frozen=True)
class Merge:
    """The merge of a copy of a finished run; `run` is its path as seen from this process."""

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
        """Run the command once."""
        return self.commands.run(*self.command, *options, watched=self.folder, happenings=happenings)

    def finish_as_told(self) -> None:
        """Run the command again, and if it refuses, once more with the option that its message suggests."""
        ended = self.start()
        if ended.code == 2:
            assert "replace it with --overwrite" in ended.error
            ended = self.start("--overwrite")
        assert ended.code == 0, ended.said
