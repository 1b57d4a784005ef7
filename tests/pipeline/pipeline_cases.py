"""Small pipelines: one that trains and measures a tiny model, and one of programs that take no time."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpo.dpo_runs import write_run as write_dpo_run
from evaluate.eval_cases import GRADERS
from rl.rl_runs import write_run as write_rl_run
from sft.small_sft import write_sft_run


@dataclass(frozen=True)
class Case:
    """Paths in the folder of a pipeline, and methods that write and read them."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "chain.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "runs" / "chain"

    def change(self, name: str, **sections: Any) -> None:
        """Merge sections into a config of the folder; None removes one."""
        path = self.folder / name
        config = yaml.safe_load(path.read_text())
        for key, value in sections.items():
            if value is None:
                config.pop(key)
            else:
                config[key] = {**config.get(key, {}), **value} if isinstance(value, Mapping) else value
        path.write_text(yaml.safe_dump(config, sort_keys=False))

    def report(self) -> dict[str, Any]:
        return json.loads((self.output / "report.json").read_text())

    def results(self) -> dict[str, str]:
        """How each step ended."""
        return {each["step"]: each["result"] for each in self.report()["steps"]}

    def folder_of(self, step: str) -> Path:
        """The folder of a step in the last report."""
        return next(Path(each["folder"]) for each in self.report()["steps"] if each["step"] == step)


def write_training(folder: Path, model: Path) -> Case:
    """SFT, then DPO with the same adapter, then GRPO on the merged model, then an evaluation and a decision."""
    for name in ("sft", "dpo"):
        (folder / name).mkdir()
    write_sft_run(folder / "sft", model)
    write_dpo_run(folder / "dpo", model, "dpo")
    write_rl_run(folder / "grpo", model, name="grpo", chat={"max_length": 256})
    rows = [{"prompt": f"Name {number} fruits.", "answer": "a"} for number in range(8)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = {
        "graders": GRADERS,
        "tasks": {
            "fruits": {"type": "graded", "path": "questions.jsonl", "gold": None, "graders": {"says_a": 2, "says_e": 1}}
        },
        "sampling": {"max_new_tokens": 8, "batch_size": 4},
    }
    (folder / "eval.yaml").write_text(yaml.safe_dump(evaluation))
    steps = {
        "sft": {"run": "sft", "config": "sft/sft.yaml"},
        "dpo": {"run": "dpo", "config": "dpo/dpo.yaml", "start": {"from": "sft", "as": "adapter"}},
        "grpo": {
            "run": "rl-train",
            "config": "grpo/grpo.yaml",
            "start": {"from": "dpo", "as": "merged"},
            "set": {"training.max_steps": 2},
        },
        "scores": {
            "run": "eval",
            "config": "eval.yaml",
            "models": {"base": "base", "sft": "sft", "dpo": "dpo", "grpo": "grpo"},
        },
        "choice": {"run": "decide", "of": "scores", "take": "grpo", "over": "sft", "task": "fruits"},
    }
    return _written(folder, steps)


def write_commands(folder: Path, names: Sequence[str] = ("one", "two", "three")) -> Case:
    """Steps by the names: each copies the output of the one before, upper-cased, and one line of its own file."""
    code = (
        "import sys; from pathlib import Path; out, own, *before = map(Path, sys.argv[1:]);"
        "text = own.read_text().split('#')[0].strip().upper() + ''.join((e / 'text').read_text() for e in before);"
        "out.mkdir(exist_ok=True); (out / 'text').write_text(text)"
    )
    steps: dict[str, Any] = {}
    for number, name in enumerate(names):
        (folder / f"{name}.txt").write_text(f"{name}\n")
        before = list(names[max(0, number - 1) : number])
        steps[name] = {
            "run": "command",
            "argv": [sys.executable, "-c", code.replace("{", "{{"), "{out}", str(folder / f"{name}.txt")]
            + [f"{{{each}}}" for each in before],
            "inputs": [f"{name}.txt"],
            "outputs": ["text"],
            "after": before,
        }
    return _written(folder, steps)


def _written(folder: Path, steps: Mapping[str, Any]) -> Case:
    case = Case(folder)
    case.config.write_text(yaml.safe_dump({"output_dir": "runs", "steps": dict(steps)}, sort_keys=False))
    return case
