"""A folder for predictions: its config, inputs, outputs and runs."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from posttrain.base.strict_json import json_line
from posttrain.config.sections.answerers import Weights
from posttrain.inference.config import load_inference_config
from posttrain.inference.weights import choose_weights
from posttrain.predict.plan import PredictJob, prepare
from posttrain.runs.checkpoints import record_files

QUESTIONS = [
    {"prompt": "What is the capital of France?"},
    {"prompt": "one two three"},
    {"messages": [{"role": "user", "content": "Anna has 3 apples"}, {"role": "assistant", "content": "She has 3."}]},
    {"prompt": "You are a helpful assistant. How many apples does she have?", "completion": "7"},
    {"prompt": "one two three"},
    {"prompt": "buys"},
]


CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""The tiny tokenizer's control tokens, by id; the last one is its end token."""

# Turns begin with token 0 and end with token 1.
OTHER_TURNS = (
    "{% for m in messages %}<|endoftext|>{{ m.role }}\n{{ m.content }}<|im_start|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant\n{% endif %}"
)


def require_ends(task: "Task", ends: set[int]) -> None:
    """Each of the tokens ends an answer, is the last of it, and is no part of its text."""
    answers = task.answers()
    assert ends <= {answer["token_ids"][-1] for answer in answers}
    for answer in answers:
        assert (answer["stop_reason"] == "end") == (answer["token_ids"][-1] in ends)
        assert ends.isdisjoint(answer["token_ids"][:-1])
        assert not any(CONTROL[token] in answer["messages"][-1]["content"] for token in ends)


@dataclass(frozen=True)
class Task:
    """Paths in the folder, and methods that write and read them."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "task.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def partial(self) -> Path:
        return self.folder / "out.jsonl.partial"

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "task"

    def ask(self, rows: Iterable[Any] = QUESTIONS, name: str = "in.jsonl") -> Path:
        """Write an input file; a string is written as it is, as one line."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    def answers(self, path: Path | None = None) -> list[dict[str, Any]]:
        text = (path or self.output).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def said(self, path: Path | None = None) -> list[str]:
        """The text of each answer."""
        return [answer["messages"][-1]["content"] for answer in self.answers(path)]

    def change(self, section: str, **keys: Any) -> None:
        """Change keys of a section of the config."""
        config = yaml.safe_load(self.config.read_text())
        config.setdefault(section, {}).update(keys)
        self.config.write_text(yaml.safe_dump(config))

    def trained(self, weights: Path | None, checkpoints: dict[int, Path] | None = None, **sections: Any) -> Path:
        """Write a run's folder as training leaves it: exported weights, a copy of the config, and checkpoints."""
        self.run.mkdir(parents=True)
        if weights is not None:
            shutil.copytree(weights, self.run, dirs_exist_ok=True)
        config = {**yaml.safe_load(self.config.read_text()), **sections}
        (self.run / "config.yaml").write_text(yaml.safe_dump(config))
        (self.run / "manifest.json").write_text("{}")
        for step, source in (checkpoints or {}).items():
            folder = Path(shutil.copytree(source, self.run / f"checkpoint-{step}"))
            (folder / "toolkit_state.json").write_text(json.dumps({"files": record_files(folder)}))
        return self.run

    def unfinished(self, answers: bytes, input_: Path, output: Path, weights: Weights = "base") -> None:
        """Write what a run leaves that was killed after these lines of answers."""
        given = load_inference_config(self.config)
        job = PredictJob(choose_weights(self.config, weights), given.generation, input_, output, overwrite=True)
        partial = output.with_name(f"{output.name}.partial")
        partial.unlink(missing_ok=True)
        partial.write_bytes(json_line({"job": prepare(job).asked.identity}) + answers)
