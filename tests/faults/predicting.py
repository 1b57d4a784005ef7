"""Small predictions, for tests that kill them, interrupt them or fill their disk."""

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
    """A prediction on two files of prompts, with two answers per prompt; `folder` is a path of the commands."""

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

    def start(self, *options: str, happenings: Sequence[Happening | After] = ()) -> Ended:
        """Run the command once."""
        return self.commands.run(*self.command, *options, watched=self.folder, happenings=happenings)

    @property
    def left(self) -> dict[str, bytes | None]:
        """The contents of the folder."""
        return contents(self.commands.seen(self.folder))

    @property
    def answers(self) -> set[bytes]:
        """The complete answer lines on disk, in the partial file or in the output."""
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
        """Run the same command again; if everything was done already, it must say so."""
        ended = self.start()
        if ended.code == 2:
            assert "already exists" in ended.error
        else:
            assert ended.code == 0, ended.said
