"""Small evaluations, for tests that kill or interrupt them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from faults.forked import After, Ended, ForkedCommands, Happening
from faults.kills import contents

QUESTIONS = ("one", "two three", "How many apples does Anna have?", "What is the capital of France?", "ten", "say a")
_GRADERS = {"says_a": {"type": "regex", "pattern": "(?s).*a.*"}, "says_e": {"type": "regex", "pattern": "(?s).*e.*"}}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of two models on three tasks; `folder` is a path of the commands."""

    commands: ForkedCommands
    folder: Path
    models: Sequence[Path]

    def __post_init__(self) -> None:
        seen = self.commands.seen(self.folder)
        seen.mkdir(parents=True)
        rows = [{"prompt": each, "completion": each[::-1], "choices": ["yes", "no"], "gold": 0} for each in QUESTIONS]
        (seen / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for number, model in enumerate(self.models):
            training = {"model": {"name": str(model), "backend": "hf", "dtype": "float32"}}
            (seen / f"model_{number}.yaml").write_text(yaml.safe_dump(training))
        graded = {"type": "graded", "path": "rows.jsonl", "gold": None, "graders": {"says_a": 1, "says_e": 1}, "n": 2}
        config = {
            "output": "out",
            "models": {f"m{number}": {"config": f"model_{number}.yaml", "weights": "base"} for number in range(2)},
            "graders": _GRADERS,
            "tasks": {
                "answers": graded,
                "which": {"type": "choice", "path": "rows.jsonl"},
                "loss": {"type": "loss", "path": "rows.jsonl"},
            },
            "sampling": {"max_new_tokens": 12, "batch_size": 4, "temperature": 1.0},
        }
        (seen / "task.yaml").write_text(yaml.safe_dump(config))

    def start(self, *, happenings: Sequence[Happening | After] = ()) -> Ended:
        """Run the command once."""
        words = ["toolkit-eval", self.folder / "task.yaml"]
        return self.commands.run(*words, watched=self.folder, happenings=happenings)

    @property
    def left(self) -> dict[str, bytes | None]:
        """The contents of the folder, without how long grading took."""
        found = contents(self.commands.seen(self.folder))
        return {path: data if data is None else re.sub(rb'"ms": ?[\d.e-]+', b"", data) for path, data in found.items()}

    @property
    def answers(self) -> set[bytes]:
        """The complete answer lines on disk, in partial files or whole ones."""
        return {
            line
            for file in (self.commands.seen(self.folder) / "out" / "kept" / "answers").glob("*.jsonl*")
            for line in file.read_bytes().splitlines(keepends=True)
            if line.endswith(b"\n") and not line.startswith(b'{"job"')
        }
