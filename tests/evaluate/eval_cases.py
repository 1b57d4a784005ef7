"""A folder with data, graders, a training config with a trained run, and a config that evaluates them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

QUESTIONS = [{"prompt": f"Say {number} apples. " * (number % 3 + 1), "answer": "a"} for number in range(12)]
CHOICES = [
    {"prompt": f"Which is {number}?", "choices": ["one apple", "two", f"number {number}"], "gold": number % 3}
    for number in range(6)
]
ANSWERS = [{"prompt": f"Say {number}.", "completion": f"It is {number}, of course."} for number in range(6)]
# A random model matches these now and then.
GRADERS = {"says_a": {"type": "regex", "pattern": "(?s).*a.*"}, "says_e": {"type": "regex", "pattern": "(?s).*e.*"}}


@dataclass(frozen=True)
class Case:
    """Paths in the folder, and methods that write and read them."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "eval.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def change(self, **sections: Any) -> None:
        """Replace sections of the config; None removes one."""
        config = yaml.safe_load(self.config.read_text())
        changed = {name: value for name, value in {**config, **sections}.items() if value is not None}
        self.config.write_text(yaml.safe_dump(changed, sort_keys=False))

    def results(self) -> dict[str, Any]:
        return json.loads((self.output / "results.json").read_text())

    def lines(self, model: str, task: str) -> list[dict[str, Any]]:
        text = (self.output / model / f"{task}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def kept(self, kind: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((self.output / "kept" / kind).iterdir())}


def write_case(folder: Path, model: Path, adapter: Path) -> Case:
    """Write everything; `eval.yaml` measures `base` and `tuned` on three tasks, by 8 greedy tokens."""
    for name, rows in (("questions", QUESTIONS), ("choices", CHOICES), ("answers", ANSWERS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"model": {"name": str(model), "backend": "hf", "dtype": "float32"}}
    (folder / "tuned.yaml").write_text(yaml.safe_dump(training))
    run = folder / "runs" / "tuned"
    run.mkdir(parents=True)
    for file in adapter.iterdir():
        (run / file.name).write_bytes(file.read_bytes())
    (run / "config.yaml").write_text(yaml.safe_dump(training))
    (run / "manifest.json").write_text("{}")
    config = {
        "output": "out",
        "models": {"base": {"config": "tuned.yaml", "weights": "base"}, "tuned": {"config": "tuned.yaml"}},
        "graders": GRADERS,
        "tasks": {
            "apples": {
                "type": "graded",
                "path": "questions.jsonl",
                "gold": None,
                "graders": {"says_a": 2, "says_e": 1},
            },
            "which": {"type": "choice", "path": "choices.jsonl"},
            "loss": {"type": "loss", "path": "answers.jsonl"},
        },
        "sampling": {"max_new_tokens": 8, "batch_size": 4},
    }
    (folder / "eval.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return Case(folder)
