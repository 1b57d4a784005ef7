"""Several models in one config train one after another, despite failures; merge and predict find each one's run."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpo.dpo_runs import write_run
from forked_command import run_forked
from posttrain.config.load import load_config
from posttrain.config.sections.model import ModelConfig, model_labels
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.several import comparison
from posttrain.errors import ConfigError
from running import BIN


def call(command: str, *arguments: object, expect: int = 0) -> str:
    done = run_forked([command, *map(str, arguments)], timeout=300)
    assert done.returncode == expect, done.stderr
    return done.stderr


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Path:
    """Three models, the second of which cannot be loaded."""
    path = write_run(tmp_path, tiny_model)
    shutil.copytree(tiny_model, tmp_path / "second")
    shutil.copytree(tiny_model, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no weights")
    data = yaml.safe_load(path.read_text())
    model = data.pop("model")
    data["models"] = [{**model, "name": str(name)} for name in (tiny_model, tmp_path / "broken", tmp_path / "second")]
    path.write_text(yaml.safe_dump(data))
    return path


def test_a_failure_does_not_stop_the_rest_and_the_runs_are_found_by_their_index(config: Path, tmp_path: Path) -> None:
    said = call("toolkit-dpo", config, "--output-dir", tmp_path / "elsewhere", expect=2)
    runs = tmp_path / "elsewhere" / config.stem
    assert "1 of 3 models failed: broken; see the errors above; use --resume to continue them" in said
    assert "error: models.1.name: cannot load" in said
    for name in ("tiny", "second"):
        result = json.loads((runs / name / "result.json").read_text())
        assert f"{name} " in said
        assert f"{result['reward_margin']:.3f}" in said
    assert not (runs / "broken" / "result.json").exists()
    assert yaml.safe_load((runs / "second" / "config.yaml").read_text())["model"]["name"] == str(tmp_path / "second")

    there = ("--set", f"run.output_dir={tmp_path / 'elsewhere'}")
    call("toolkit-merge", config, "--model-index", 2, *there)
    assert (runs / "second" / "merged" / "config.json").is_file()
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "Hi"}\n')
    for index, weights in ((2, "merged"), (0, "adapter"), (2, "base")):
        answers = tmp_path / f"answers_{index}_{weights}.jsonl"
        call("toolkit-predict", config, questions, answers, "--model-index", index, "--weights", weights, *there,
             "--set", "generation.max_new_tokens=4")  # fmt: skip
        assert len(answers.read_text().splitlines()) == 1
    for command in (("toolkit-merge", config), ("toolkit-predict", config, questions, tmp_path / "none.jsonl")):
        told = call(*command, *there, expect=2)
        assert "--model-index: the config has several models; give 0 for tiny, 1 for broken, 2 for second" in told


def write_models(config: Path, *changes: dict[str, Any]) -> None:
    """Make the models of the config copies of the first one, each with its own changes."""
    data: dict[str, Any] = yaml.safe_load(config.read_text())
    data["models"] = [{**data["models"][0], **change} for change in changes]
    config.write_text(yaml.safe_dump(data))


def test_a_failed_dry_run_names_the_key_says_nothing_of_resume_and_ends_as_wrong_input_does(config: Path) -> None:
    write_models(config, {"name": "./nowhere"}, {})
    said = call("toolkit-dpo", config, "--dry-run", expect=2)
    assert "error: models.0.name: there is no folder" in said
    assert said.count("nothing was trained (--dry-run)") == 1
    assert said.splitlines()[-1] == "error: 1 of 2 models failed: nowhere; see the errors above"


@pytest.mark.long
def test_runs_that_failed_by_themselves_end_as_a_failed_run_does(config: Path) -> None:
    write_models(config, {"name": "./nowhere"}, {})
    said = call("toolkit-dpo", config, "--set", "training.learning_rate=1e30", expect=1)
    assert "2 of 2 models failed: nowhere, tiny" in said


def test_a_typo_in_one_of_several_models_is_told_once_where_it_stands(config: Path) -> None:
    write_models(config, {"dtyp": "float32"}, {})
    with pytest.raises(ConfigError) as refused:
        load_config(config, DPOConfig)
    assert "models.0.dtyp: unknown key; did you mean dtype?" in str(refused.value)
    assert "\n" not in str(refused.value)


def finished(folder: Path, exported: str, evaluations: dict[int, float]) -> Path:
    """The folder of a finished run, with held-out losses by step."""
    folder.mkdir()
    rows: list[dict[str, Any]] = [
        {"step": step, "eval_loss": loss, "eval_reward_accuracy": loss / 2} for step, loss in evaluations.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = {"steps": 9, "exported": exported, "reward_accuracy": 0.9, "reward_margin": 1.5, "seconds": 3.0}
    (folder / "result.json").write_text(json.dumps({**result, "validation_loss": None}))
    return folder


def test_the_table_compares_the_weights_that_were_exported(tmp_path: Path) -> None:
    runs = [
        finished(tmp_path / "best", "checkpoint-4", {0: 0.7, 4: 0.2, 8: 0.4}),
        finished(tmp_path / "once", "checkpoint-9", {8: 0.6}),
        finished(tmp_path / "never", "checkpoint-9", {0: 0.7}),
        tmp_path / "failed",
    ]
    table = comparison(runs, [0, 0, 0, 2])
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("best", "9", "0.200", "0.100", "1.500", "3.000"),
        ("once", "9", "0.600", "0.300", "1.500", "3.000"),
        ("never", "9", "", "0.900", "1.500", "3.000"),
        ("failed", "failed (exit status 2)", "", "", "", ""),
    ]


def test_a_dry_run_plans_each_model_and_trains_none(config: Path) -> None:
    said = call("toolkit-dpo", config, "--dry-run", "--set", "stages.0.until_step=2")
    assert said.count("nothing was trained (--dry-run)") == 3
    assert not (config.parent / "runs").exists()


@pytest.mark.parametrize(
    ("index", "told"), [("3", "give 0 for tiny, 1 for broken, 2 for second"), ("-1", "give 0 for tiny")]
)
def test_a_model_that_is_not_there_is_refused(config: Path, index: str, told: str) -> None:
    assert told in call("toolkit-dpo", config, "--model-index", index, expect=2)


def test_one_model_has_no_index(tmp_path: Path, tiny_model: Path) -> None:
    config = write_run(tmp_path, tiny_model)
    told = call("toolkit-dpo", config, "--model-index", "0", expect=2)
    assert "--model-index: the config has one model; leave the option out" in told


def test_one_model_and_several_together_are_refused(config: Path) -> None:
    data: dict[str, Any] = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**data, "model": data["models"][0]}))
    with pytest.raises(ConfigError, match="give either `model` or `models`, not both"):
        load_config(config, DPOConfig)


def test_models_of_one_name_are_told_apart_by_their_index() -> None:
    models = [ModelConfig(name=name) for name in ("a/Small", "b/Small", "c/Large.gguf")]
    assert model_labels(models) == ["Small-0", "Small-1", "Large"]
    crossed = model_labels([ModelConfig(name=name) for name in ("x/a", "y/a", "z/a-0")])
    assert crossed == ["a-0-0", "a-1", "a-0-2"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_model_is_loaded_ends_it_all_and_no_other_model_is_begun(
    config: Path, number: signal.Signals, code: int
) -> None:
    command = [BIN / "toolkit-dpo", config]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        # As a terminal or a cluster does: to the command and the processes it started.
        os.killpg(process.pid, number)
        said = first + process.stderr.read()
    assert process.returncode == code, said
    assert "stopped at model 0 (tiny); use --resume to continue" in said
    assert "model 1 of 3" not in said
    assert "Traceback" not in said
