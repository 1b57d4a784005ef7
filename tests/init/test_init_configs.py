"""Configs that toolkit-init writes pass --dry-run, and nothing is written where they do not."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from posttrain.base.locks import own_output
from posttrain.cli.init import main
from posttrain.cli.sft import main as sft
from posttrain.config.load import load_config
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.messages import Conversation, Message
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.evaluate.config import EvalConfig
from posttrain.inference.load import load_text
from posttrain.init.columns import guess_columns
from posttrain.init.golds import find_gold
from posttrain.init.measure import measure
from posttrain.pipeline.config import PipelineConfig
from posttrain.rl.config import RLConfig
from posttrain.sft.config import SFTConfig


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, rows: list[dict]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(*arguments: str | Path, said: str = ""):
    return CliRunner().invoke(main, [str(each) for each in arguments], input=said)


def test_sft_with_other_columns_and_a_bad_record(folder: Path, tiny_model: Path) -> None:
    rows = [{"question": f"What is {n}?", "answer": f"It is {n}."} for n in range(119)]
    write("rows.jsonl", [*rows, {"question": 'bad: "quotes" # and \\', "answer": ""}])
    result = run("--data", "rows.jsonl", "--model", tiny_model, "--output", 'a "b".yaml', "--yes")
    assert result.exit_code == 0, result.output
    config = load_config(folder / 'a "b".yaml', SFTConfig)
    assert config.datasets["data"].columns.prompt == "question"
    assert config.datasets["data"].columns.system is None
    assert config.on_bad_record == "skip"
    assert config.run.name == 'a "b"'
    # 119 usable rows without 6 held-out ones, three times, 16 in a step: 339 / 16.
    assert config.stages[-1].until_step == 22
    assert "119 usable, 1 not" in result.output
    assert sorted(path.name for path in folder.iterdir()) == ['a "b".yaml', "rows.jsonl"]
    assert [line for line in result.output.splitlines() if line.startswith("  toolkit-")] == [
        "  toolkit-preview 'a \"b\".yaml'",
        "  toolkit-sft 'a \"b\".yaml'",
        "  toolkit-merge 'a \"b\".yaml'",
    ]


def test_pairs_by_answers_to_questions(folder: Path, tiny_model: Path) -> None:
    write("pairs.jsonl", [{"prompt": f"{n}?", "chosen": f"{n}", "rejected": "no idea"} for n in range(20)])
    said = f"pairs.jsonl\n\n{tiny_model}\nmine.yaml\n2\n"  # the file, the guessed task, the model, the config, passes
    result = run(said=said)
    assert result.exit_code == 0, result.output
    config = load_config(folder / "mine.yaml", DPOConfig)
    assert config.validation is None  # too few
    assert config.stages[0].until_step == 3  # 2 × 20 / 16


def test_a_pipeline_trains_measures_and_decides(folder: Path, tiny_model: Path) -> None:
    write("sums.jsonl", [{"question": f"{n} + 1?", "answer": f"one more #### {n + 1}"} for n in range(200)])
    result = run("--task", "pipeline", "--data", "sums.jsonl", "--model", tiny_model, "--output", "sums.yaml", "--yes")
    assert result.exit_code == 0, result.output
    config = load_config(folder / "sums.yaml", PipelineConfig)
    assert list(config.steps) == ["grpo", "merged", "scores", "choice"]
    assert load_config(folder / "sums_eval.yaml", EvalConfig).tasks["held_out"].config == folder / "sums_data.yaml"
    # 50 of 200: with 5 % there would be too few prompts for a verdict.
    assert load_config(folder / "sums_data.yaml", DataserverConfig).datasets["data"].validation_fraction == 0.25
    assert load_config(folder / "sums_grpo.yaml", RLConfig).run.name == "sums_grpo"  # beside the pipeline's own folder
    names = ["sums.jsonl", "sums.yaml", "sums_data.yaml", "sums_eval.yaml", "sums_grpo.yaml"]
    assert sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.long
def test_a_held_out_prompt_that_is_too_long_does_not_end_the_pipeline(folder: Path, tiny_model: Path) -> None:
    rows = [{"question": f"{n} + 1?", "answer": f"{n + 1}"} for n in range(199)]
    write("sums.jsonl", [*rows, {"question": "1 + 1 " * 4000, "answer": "2"}])
    result = run("--task", "pipeline", "--data", "sums.jsonl", "--model", tiny_model, "--output", "sums.yaml", "--yes")
    assert result.exit_code == 0, result.output
    assert load_config(folder / "sums_eval.yaml", EvalConfig).on_bad_record == "skip"


def test_a_pipeline_needs_prompts_to_hold_out(folder: Path, tiny_model: Path) -> None:
    write("few.jsonl", [{"question": f"{n} + 1?", "answer": f"{n + 1}"} for n in range(20)])
    result = run("--task", "pipeline", "--data", "few.jsonl", "--model", tiny_model, "--output", "few.yaml", "--yes")
    assert result.exit_code == 2
    assert "100 usable rows" in result.output
    assert [path.name for path in folder.iterdir()] == ["few.jsonl"]


def test_grpo_gets_a_dataserver_with_a_grader(folder: Path, tiny_model: Path) -> None:
    write("sums.jsonl", [{"question": f"{n} + 1?", "answer": f"one more #### {n + 1}"} for n in range(200)])
    result = run("--task", "grpo", "--data", "sums.jsonl", "--model", tiny_model, "--output", "sub/rl.yaml", "--yes")
    assert result.exit_code == 0, result.output
    config = load_config(folder / "sub" / "rl.yaml", RLConfig)
    assert config.dataserver.config == folder / "sub" / "rl_data.yaml"
    server = load_config(folder / "sub" / "rl_data.yaml", DataserverConfig)
    assert server.data_root == folder  # no file outside it can be named
    assert server.prompts_per_iteration * config.rollout.generations == config.training.rows_per_step
    raw = yaml.safe_load((folder / "sub" / "rl_data.yaml").read_text())
    assert raw["datasets"]["data"]["gold"] == {"column": "answer", "extract": {"after": "####"}}
    assert raw["graders"] == {"right": {"type": "number_exact"}}


def test_prompts_are_measured_with_their_system_message_and_rows_without_a_gold_answer_are_counted(
    folder: Path, tiny_model: Path
) -> None:
    asked = [{"prompt": "Capital?", "answer": "Paris"}] * 20
    write("cities.jsonl", [*asked, {"prompt": "x" * 99, "answer": None}])
    text = load_text(ModelConfig(name=str(tiny_model)), ChatConfig())
    gold = find_gold(Path("cities.jsonl"), "answer")
    assert gold.system is not None
    measured = measure(Path("cities.jsonl"), guess_columns(Path("cities.jsonl"), "grpo"), text.encoder, gold)
    prompt = Conversation((Message("system", gold.system), Message("user", "Capital?")))
    assert measured.lengths == [len(text.encoder.prompts([prompt])[0])] * 20
    assert [fault.split(": ")[0] for fault in measured.faults] == ["cities.jsonl:21"]


def test_a_config_can_be_trained_with(folder: Path, tiny_model: Path) -> None:
    (folder / "rows").mkdir()
    rows = [{"instruction": f"{n}?", "output": f"{n}", "system": "Count.", "id": n} for n in range(20)]
    write("rows/a.jsonl", rows)
    result = run("--data", "rows/a.jsonl", "--model", tiny_model, "--output", "configs/a.yaml", "--yes")
    assert result.exit_code == 0, result.output
    assert "not used: output, id" in result.output
    config = folder / "configs" / "a.yaml"
    trained = CliRunner().invoke(sft, [str(config), "--set", "training.max_steps=1"])
    assert trained.exit_code == 0, trained.output
    assert (folder / "configs" / "runs" / "a" / "adapter_model.safetensors").is_file()


def test_nothing_is_written_if_the_dry_run_fails(folder: Path, tiny_model: Path) -> None:
    write("rows.jsonl", [{"prompt": f"{n}?", "completion": "a"} for n in range(20)])
    run_folder = folder / "runs" / "sft"
    run_folder.mkdir(parents=True)
    (run_folder / "manifest.json").write_text("{}")  # a run of this name exists
    result = run("--data", "rows.jsonl", "--model", tiny_model, "--yes")
    assert result.exit_code == 2
    assert "dry-run" in result.output
    assert "already" in result.output  # the reason
    assert ".tmp" not in result.output
    assert sorted(path.name for path in folder.iterdir()) == ["rows.jsonl", "runs"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--yes"], "--data"),
        (["--yes", "--data", "missing.jsonl"], "missing.jsonl"),
        (["--yes", "--data", "rows.jsonl", "--task", "dpo"], "chosen"),
        (["--yes", "--data", "rows.jsonl", "--output", "there.yaml"], "--overwrite"),
        (["--yes", "--data", "rows.jsonl", "--output", "rows.jsonl"], ".yaml"),
        (["--yes", "--data", "rows.jsonl", "--model", "./nowhere"], "nowhere"),
        (["--yes", "--data", "bad.jsonl"], "bad.jsonl"),
        (["--data", "rows.jsonl"], "no answer"),
        (["--yes", "--data", "rows.jsonl", "--output", "rows.jsonl/sub/x.yaml"], "rows.jsonl"),
    ],
)
def test_wrong_input_is_refused_with_its_name(
    arguments: list[str], problem: str, folder: Path, tiny_model: Path
) -> None:
    write("rows.jsonl", [{"prompt": "a", "completion": "b"}])
    write("bad.jsonl", [{"prompt": "a", "completion": ""}, {"prompt": "a", "completion": "b"}])
    Path("there.yaml").write_text("mine: true\n")
    result = run(*arguments, *(["--model", tiny_model] if "--model" not in arguments else []))
    assert result.exit_code == 2, result.output
    assert problem in result.output
    assert Path("there.yaml").read_text() == "mine: true\n"
    assert sorted(path.name for path in folder.iterdir()) == ["bad.jsonl", "rows.jsonl", "there.yaml"]


def test_a_file_that_another_process_writes_is_left_alone(folder: Path) -> None:
    write("rows.jsonl", [{"prompt": "a", "completion": "b"}])
    with own_output(Path("sft.yaml")):
        result = run("--yes", "--data", "rows.jsonl")
    assert result.exit_code == 2
    assert "another process" in result.output or "process " in result.output
    assert not Path("sft.yaml").exists()


def test_an_answer_that_is_no_number_is_refused(folder: Path, tiny_model: Path) -> None:
    write("rows.jsonl", [{"prompt": "a", "completion": "b"}])
    result = run("--data", "rows.jsonl", "--model", tiny_model, "--task", "sft", said="x.yaml\nmany\n")
    assert result.exit_code == 2
    assert "passes" in result.output
