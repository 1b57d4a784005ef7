"""The page on preference optimisation covers every method; its configs load and its commands run."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml

from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.losses.methods import AnyMethod
from running import BIN
from test_dataserver_docs import blocks

PAGE = (Path(__file__).parent.parent / "docs" / "dpo.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for block in blocks(PAGE, "")
    for line in block.splitlines()
    if line.startswith("toolkit-") and "examples/" not in line  # the example takes minutes; other tests load its config
]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """The page's first config, scaled down for a test, and its data."""
    config, *_ = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
    config["model"] = {"name": str(tiny_model)}
    config["training"] = {"rows_per_step": 2, "micro_batch_size": 2, "max_steps": 1}
    config["generation"] = {"max_new_tokens": 4}
    (tmp_path / "dpo.yaml").write_text(yaml.safe_dump(config))
    pairs = [{"prompt": f"{number} + 1?", "chosen": str(number + 1), "rejected": "I wonder."} for number in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (tmp_path / "questions.jsonl").write_text('{"prompt": "2 + 2?"}\n')
    return tmp_path


def test_the_commands_run_one_after_another(folder: Path) -> None:
    assert [shlex.split(command)[0] for command in COMMANDS] == [
        *["toolkit-dpo"] * 3,
        "toolkit-merge",
        "toolkit-predict",
    ]
    for command in COMMANDS:
        words = shlex.split(command)
        done = subprocess.run([BIN / words[0], *words[1:]], cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 1


def test_the_other_sections_that_are_shown_are_those_of_a_config(folder: Path) -> None:
    _, mixture, datasets, models = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
    whole = yaml.safe_load((folder / "dpo.yaml").read_text())
    stages = [{"name": "all", "epochs": 1}]
    shown = {**whole, **datasets, "method": {"type": "kto"}, "stages": stages, "validation": None}
    (folder / "kto.yaml").write_text(yaml.safe_dump(shown))
    config = load_config(folder / "kto.yaml", DPOConfig)
    assert [name for name, dataset in config.datasets.items() if dataset.labelled] == ["marks", "others"]
    (folder / "mixture.yaml").write_text(yaml.safe_dump({**whole, **mixture}))
    assert load_config(folder / "mixture.yaml", DPOConfig).method.type == "mixture"
    del whole["model"]
    (folder / "several.yaml").write_text(yaml.safe_dump({**whole, **models}))
    assert [model.name for model in load_config(folder / "several.yaml", DPOConfig).models][1] == "other/model"


def test_every_method_has_its_row_of_advice_and_of_numbers() -> None:
    union = get_args(AnyMethod)[0]
    methods = {method.model_fields["type"].annotation.__args__[0] for method in get_args(union)}
    assert all("loss" in vars(method) for method in get_args(union))
    for heading in ("you have", "method"):
        table = re.search(rf"^\| {heading} \|.*\n(?:^\|.*\n)+", PAGE, re.MULTILINE)
        assert table is not None
        named = set(re.findall(r"`(\w+)`", table[0]))
        assert named >= methods - ({"hinge", "exo"} if heading == "you have" else {"mixture"})
