"""A folder with prompts, a model's config, and a config that samples answers to the prompts and keeps some."""

import json
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from forked_command import ForkedCommand

QUESTIONS = [{"prompt": f"Say {number} apples. " * (number % 3 + 1), "answer": "a"} for number in range(12)]
# A random model matches these now and then, and writes the stop texts often.
GRADERS = {"says_a": {"type": "regex", "pattern": "(?s).*a.*"}, "says_e": {"type": "regex", "pattern": "(?s).*e.*"}}
SAMPLE = {"n": 4, "max_new_tokens": 12, "batch_size": 16, "stop": ["o", "t", "i", " "]}
KEEP = [
    {"type": "sft", "path": "good.jsonl", "min_reward": 0.6, "per_prompt": 2},
    {"type": "pairs", "path": "pairs.jsonl", "min_gap": 0.3},
]


@dataclass(frozen=True)
class DataCase:
    """Paths in the folder, and methods that write and read them."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "data.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def change(self, **sections: Any) -> None:
        """Replace sections of the config; None removes one."""
        config = yaml.safe_load(self.config.read_text())
        changed = {name: value for name, value in {**config, **sections}.items() if value is not None}
        self.config.write_text(yaml.safe_dump(changed, sort_keys=False))

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.output / name).read_text().splitlines()]

    def ledger(self) -> dict[str, Any]:
        return json.loads((self.output / "ledger.json").read_text())

    def kept(self, kind: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((self.output / "kept" / kind).iterdir())}

    def files(self) -> dict[str, bytes]:
        """All files in the output but for the ledger and the grades, which hold times."""
        files = [path for path in sorted(self.output.rglob("*")) if path.is_file()]
        paths = [path for path in files if path.name != "ledger.json" and path.parent.name != "grades"]
        return {str(path.relative_to(self.output)): path.read_bytes() for path in paths}


def write_jsonl_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_data_case(folder: Path, model: Path) -> DataCase:
    """Write everything; `data.yaml` samples 4 answers to each of 12 prompts."""
    write_jsonl_file(folder / "questions.jsonl", QUESTIONS)
    training = {"model": {"name": str(model), "backend": "hf", "dtype": "float32"}}
    (folder / "model.yaml").write_text(yaml.safe_dump(training))
    config = {
        "output": "out",
        "prompts": {"path": "questions.jsonl", "gold": None, "graders": {"says_a": 2, "says_e": 1}},
        "graders": GRADERS,
        "model": {"config": "model.yaml", "weights": "base"},
        "sample": SAMPLE,
        "keep": KEEP,
    }
    (folder / "data.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return DataCase(folder)


def killed_after(answers: int, file: str, case: DataCase, *options: str) -> None:
    """Start `toolkit-data run` and SIGKILL it once more than `answers` answers are in `file` of the output."""
    log = case.folder / "log"
    process = ForkedCommand(["toolkit-data", "run", case.config, *options], log, log)
    try:
        while process.poll() is None and not any(
            path.read_bytes().count(b"\n") > answers for path in case.output.rglob(file)
        ):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()


def require_sums(ledger: dict[str, Any]) -> None:
    """Assert that all numbers of a ledger add up."""
    prompts, answers = Counter(ledger["prompts"]), Counter(ledger["answers"])
    assert prompts.pop("read") == prompts.total()
    assert prompts["contaminated"] == len(ledger["contaminated"])
    assert prompts["duplicate"] == len(ledger["duplicates"])
    assert prompts["asked"] == sum(ledger["rewards"].values())
    assert answers.pop("asked") == answers.total()
    for each in ledger["files"].values():
        assert sum(each["prompts"].values()) == prompts["asked"]
        rows = each["rows"]
        assert rows["chosen"] == rows["duplicate"] + rows["kept"] >= each["prompts"]["kept"]
        assert rows["duplicate"] == len(each["duplicates"])
