"""The translated examples of other tools train: two steps of each, with a tiny model."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from posttrain.cli import dpo, rl_train, sft
from running import metrics

EXAMPLES = Path(__file__).parents[1] / "examples"
COMMANDS = {"sft": sft.main, "dpo": dpo.main, "kto": dpo.main, "grpo": rl_train.main}
TRANSLATED = sorted(path for path in EXAMPLES.glob("coming_from/*/*.yaml") if path.stem in COMMANDS)


@pytest.mark.long
@pytest.mark.parametrize("path", TRANSLATED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_translated_example_trains(path: Path, tiny_model: Path, tmp_path: Path, write_jsonl: Any):
    """In a copy, where runs and journals stay; two steps, because one would be all warm-up."""
    for name in ("word_problems", "preferences", f"coming_from/{path.parent.name}"):
        shutil.copytree(EXAMPLES / name, tmp_path / "examples" / name)
    config = tmp_path / path.relative_to(EXAMPLES.parent)
    problems = [{"question": f"{number} + 1?", "answer": f"#### {number + 1}"} for number in range(16)]
    write_jsonl(config.parent / "gsm8k_train.jsonl", problems)
    values = {"model.name": tiny_model, "chat.max_length": 512, "training.max_steps": 2, "training.warmup_steps": 0}
    if path.stem == "grpo":
        values["rollout.max_new_tokens"] = 8
    options = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]

    result = CliRunner().invoke(COMMANDS[path.stem], [str(config), *options])

    assert result.exit_code == 0, result.output
    assert metrics(tmp_path / "runs" / f"{path.parent.name}_{path.stem}")
