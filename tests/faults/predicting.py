"""Small predictions, as they are killed, interrupted and starved of room."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from faults.forked import After, Ended, ForkedCommands, Happening
from faults.kills import contents

WORDS = ("one", "two three", "How many apples does Anna have?", "What is the capital of France?", "ten")


@dataclass(frozen=True)
class Prediction:
    """Two files of prompts in a folder, of which each is answered twice; paths are as this process sees them."""

    commands: ForkedCommands
    folder: Path
    model: Path

    def __post_init__(self) -> None:
        seen = self.commands.seen(self.folder)
        (seen / "in").mkdir(parents=True)
        for name in ("a", "b"):
            rows = [{"prompt": f"{name} {words}"} for words in WORDS]
            (seen / "in" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {
            "model": {"name": str(self.model), "backend": "hf", "dtype": "float32"},
            "generation": {"max_new_tokens": 24, "batch_size": 4, "temperature": 1.0, "n": 2, "logprobs": True},
        }
        (seen / "task.yaml").write_text(yaml.safe_dump(config))

    @property
    def command(self) -> tuple[str | Path, ...]:
        files = [self.folder / name for name in ("task.yaml", "in", "out")]
        return ("toolkit-predict", *files, "--weights", "base")

    def start(self, *, happenings: Sequence[Happening | After] = ()) -> Ended:
        """The command, once."""
        return self.commands.run(*self.command, watched=self.folder, happenings=happenings)

    @property
    def left(self) -> dict[str, bytes | None]:
        """All that is in the folder."""
        return contents(self.commands.seen(self.folder))

    @property
    def answers(self) -> set[bytes]:
        """The whole lines on disk, wherever they are."""
        seen = self.commands.seen(self.folder)
        files = [seen / "out.partial", *sorted((seen / "out").glob("*.jsonl"))]
        return {
            line
            for file in files
            if file.is_file()
            for line in file.read_bytes().splitlines(keepends=True)
            if line.endswith(b"\n") and not line.startswith(b'{"job"')
        }

    def finish_as_told(self) -> None:
        """Start the same command again; where all was done already, it says so."""
        ended = self.start()
        if ended.code == 2:
            assert "already exists" in ended.error
        else:
            assert ended.code == 0, ended.said
