"""Rounds: the same steps again, each time with the model that was trained before."""

from pathlib import Path

import pytest
import yaml

from posttrain.config.load import load_config
from posttrain.errors import ConfigError
from posttrain.pipeline.config import PipelineConfig

ROUND = {
    "sample": {"run": "data", "config": "data.yaml", "model_of": "previous", "set": {"sample.seed": "{round}"}},
    "dpo": {
        "run": "dpo",
        "config": "dpo.yaml",
        "start": {"from": "previous", "as": "adapter"},
        "inputs": {"datasets.own.path": {"from": "sample", "file": "pairs.jsonl"}},
    },
    "count": {"run": "command", "argv": ["wc", "{sample}/pairs.jsonl", "{out}"], "outputs": ["x"], "after": ["sample"]},
}


def loaded(folder: Path, **changes: object) -> PipelineConfig:
    config = {
        "steps": {
            "sft": {"run": "sft", "config": "sft.yaml"},
            "scores": {"run": "eval", "config": "eval.yaml", "models": {"first": "round1.dpo", "last": "round2.dpo"}},
        },
        "rounds": {"times": 2, "previous": "sft", "steps": ROUND, **changes},
    }
    (folder / "p.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return load_config(folder / "p.yaml", PipelineConfig)


def test_each_round_uses_the_model_of_the_one_before(tmp_path: Path) -> None:
    steps = loaded(tmp_path).all_steps()
    assert [name for name in steps if name.startswith("round")] == [
        f"round{number}.{name}" for number in (1, 2) for name in ("sample", "dpo", "count")
    ]
    assert steps["round1.sample"].needs == ("sft",)
    assert steps["round1.dpo"].needs == ("sft", "round1.sample")
    assert steps["round2.sample"].needs == ("round1.dpo",)
    assert steps["round2.dpo"].needs == ("round1.dpo", "round2.sample")
    assert steps["scores"].needs == ("round1.dpo", "round2.dpo")


def test_the_number_of_the_round_and_names_of_steps_are_filled_in(tmp_path: Path) -> None:
    steps = loaded(tmp_path).all_steps()
    assert [steps[f"round{number}.sample"].set for number in (1, 2)] == [{"sample.seed": 1}, {"sample.seed": 2}]
    assert steps["round2.count"].argv[1] == "{round2.sample}/pairs.jsonl"


def test_the_first_round_may_start_from_the_model_before_all_training(tmp_path: Path) -> None:
    steps = loaded(tmp_path, previous="base").all_steps()
    assert steps["round1.dpo"].needs == ("round1.sample",)
    assert steps["round2.dpo"].needs == ("round1.dpo", "round2.sample")


def test_the_number_may_be_part_of_a_text(tmp_path: Path) -> None:
    sample = {**ROUND["sample"], "set": {"prompts.path": "part-{round}.jsonl"}}
    steps = loaded(tmp_path, steps={**ROUND, "sample": sample}).all_steps()
    assert steps["round2.sample"].set == {"prompts.path": "part-2.jsonl"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"previous": "sfd"}, "sfd"),
        ({"steps": {"sample": ROUND["sample"]}}, "trains"),
        ({"times": 0}, "rounds.times"),
        ({"steps": {**ROUND, "dpo": {**ROUND["dpo"], "start": {"from": "simple"}}}}, "simple"),
    ],
)
def test_wrong_rounds_are_refused(tmp_path: Path, changes: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        loaded(tmp_path, **changes)
