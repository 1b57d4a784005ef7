"""An edit runs again exactly the steps whose results it can change."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline.pipeline_cases import Case

STEPS = ["sft", "dpo", "dpo.merged", "grpo", "scores", "choice"]
Plan = Callable[..., dict[str, str]]


def after(changed: str | None) -> dict[str, str]:
    """The plan when `changed` runs again, and all that need it wait; all are kept if nothing changed."""
    first = len(STEPS) if changed is None else STEPS.index(changed)
    return {step: "kept" if n < first else "runs" if n == first else "waits" for n, step in enumerate(STEPS)}


def add_line(path: Path, row: dict) -> None:
    path.write_text(path.read_text() + json.dumps(row) + "\n")


def comment(case: Case) -> None:
    for file in case.folder.rglob("*.yaml"):
        if "runs" not in file.parts:
            file.write_text(f"# a remark\n{file.read_text()}")


def order_of_keys(case: Case) -> None:
    for name in ("sft/sft.yaml", "dpo/dpo.yaml", "grpo/grpo.yaml", "grpo/data.yaml", "eval.yaml"):
        path = case.folder / name
        path.write_text(yaml.safe_dump(dict(reversed(yaml.safe_load(path.read_text()).items())), sort_keys=False))


def times_of_files(case: Case) -> None:
    for file in case.folder.rglob("*.jsonl"):
        os.utime(file, (1, 1))


def move_model(case: Case, file: str, added_key: str | None = None) -> None:
    """Train a copy of the base model, to one file of which a key may be added."""
    config = yaml.safe_load((case.folder / "sft/sft.yaml").read_text())
    folder = Path(shutil.copytree(config["model"]["name"], case.folder / "model"))
    if added_key is not None:
        values = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**values, added_key: not values.get(added_key)}))
    case.change("sft/sft.yaml", model={"name": str(folder)})


def move_training(case: Case, **changes: object) -> None:
    """Keep the training section of sft in a file that it extends, in another folder."""
    path = case.folder / "sft/sft.yaml"
    config = yaml.safe_load(path.read_text())
    training = {**config.pop("training"), **changes}
    (case.folder / "shared.yaml").write_text(yaml.safe_dump({"training": training}))
    path.write_text(yaml.safe_dump({"extends": "../shared.yaml", **config}))


SFT = {"run": "sft", "config": "sft/sft.yaml"}
CHOICE = {"run": "decide", "of": "scores", "task": "fruits"}

EDITS: dict[str, tuple[Callable[[Case], object], str | None]] = {
    "nothing but the place": (lambda case: None, None),
    "a comment": (comment, None),
    "the order of keys": (order_of_keys, None),
    "times of files": (times_of_files, None),
    "where checkpoints go": (lambda case: case.change("sft/sft.yaml", run={"name": "other"}), None),
    "the file that holds the values": (move_training, None),
    "a value in a file that sft extends": (lambda case: move_training(case, learning_rate=2e-2), "sft"),
    "the learning rate of sft": (lambda case: case.change("sft/sft.yaml", training={"learning_rate": 2e-2}), "sft"),
    "a row of sft": (lambda case: add_line(case.folder / "sft/a.jsonl", {"prompt": "x", "completion": "y"}), "sft"),
    "held-out rows of sft": (
        lambda case: add_line(case.folder / "sft/held_out.jsonl", {"prompt": "x", "completion": "y"}),
        "sft",
    ),
    "the learning rate of dpo": (lambda case: case.change("dpo/dpo.yaml", training={"learning_rate": 2e-2}), "dpo"),
    "a pair of dpo": (
        lambda case: add_line(case.folder / "dpo/pairs.jsonl", {"prompt": "x", "chosen": "y", "rejected": "z"}),
        "dpo",
    ),
    "a prompt of grpo": (lambda case: add_line(case.folder / "grpo/a.jsonl", {"prompt": "x"}), "grpo"),
    "a grader of grpo": (
        lambda case: case.change("grpo/data.yaml", graders={"says_a": {"type": "regex", "pattern": "b"}}),
        "grpo",
    ),
    "how the dataserver keeps its journal": (lambda case: case.change("grpo/data.yaml", journal=None), None),
    "a question of eval": (lambda case: add_line(case.folder / "questions.jsonl", {"prompt": "x"}), "scores"),
    "a grader of eval": (
        lambda case: case.change("eval.yaml", graders={"says_a": {"type": "regex", "pattern": "b"}}),
        "scores",
    ),
    "the base model in another place": (lambda case: move_model(case, "config.json"), None),
    "a file of the base model": (lambda case: move_model(case, "config.json", "tie_word_embeddings"), "sft"),
    "a text that looks like a path": (
        lambda case: [
            case.change(f"{name}/{name}.yaml", chat={"default_system": "/no_think " + "x" * 300})
            for name in ("sft", "dpo", "grpo")
        ],
        "sft",
    ),
    "how many checkpoints are kept": (lambda case: case.change("sft/sft.yaml", run={"keep_checkpoints": 7}), None),
    "how a step is launched": (
        lambda case: case.change("chain.yaml", steps={"sft": {**SFT, "launch": ["env", "A=1"]}}),
        "sft",
    ),
    "how long a grader may take": (
        lambda case: case.change("grpo/data.yaml", limits={"grader_seconds": 9.0}),
        "grpo",
    ),
    "which model is taken over which": (
        lambda case: case.change("chain.yaml", steps={"choice": {**CHOICE, "take": "sft", "over": "grpo"}}),
        "choice",
    ),
    "how many devices answer": (lambda case: case.change("eval.yaml", sampling={"devices": ["cpu"]}), None),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_runs_again_what_it_can_change(copied: Case, plan: Plan, edit: str) -> None:
    change, first = EDITS[edit]
    change(copied)
    assert plan(copied) == after(first)


def test_going_back_to_an_earlier_config_costs_nothing(copied: Case, plan: Plan) -> None:
    before = (copied.folder / "dpo/dpo.yaml").read_text()
    copied.change("dpo/dpo.yaml", training={"learning_rate": 2e-2})
    assert plan(copied) == after("dpo")
    (copied.folder / "dpo/dpo.yaml").write_text(before)
    assert plan(copied) == after(None)


def test_a_key_set_in_the_pipeline_counts_as_one_in_the_config(copied: Case, plan: Plan) -> None:
    assert plan(copied, 'steps.grpo.set={"training.max_steps": 3}') == after("grpo")
    assert plan(copied, "steps.choice.by=0.5") == after("choice")
    assert plan(copied, "steps.scores.baseline=sft") == after("scores")


def test_a_step_in_the_middle_that_trains_anew_on_a_merged_model_needs_no_new_merge(copied: Case, plan: Plan) -> None:
    copied.change(
        "chain.yaml", steps={"more": {"run": "dpo", "config": "dpo/dpo.yaml", "start": {"from": "dpo", "as": "merged"}}}
    )
    assert plan(copied) == {**after(None), "more": "runs"}
