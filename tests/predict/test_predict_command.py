"""`toolkit-predict` on the command line: its plan, its options, and one message for each error."""

from collections.abc import Callable
from pathlib import Path

import pytest
from predict_cases import QUESTIONS, Task
from typer.testing import CliRunner

from posttrain.cli.predict import main

BASE = ("--weights", "base")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_dry_run_prints_the_plan_loads_no_weights_and_writes_nothing(task: Task, run: Callable, sharp_model: Path):
    model = task.folder / "model"
    model.mkdir()
    for file in sharp_model.iterdir():
        if file.suffix != ".safetensors":
            (model / file.name).symlink_to(file)
    task.change("model", name=str(model))
    task.change("generation", temperature=0.7, top_p=0.9, n=2, stop=["\n\n"])
    input_ = task.ask([*QUESTIONS, "{broken"])
    before = files(task.folder)
    result = run(task.config, input_, task.output, *BASE, "--dry-run", "--set", "on_bad_record=skip")
    assert result.stdout == ""
    assert result.stderr.splitlines()[1:] == [
        f"rows      6 in {input_}, 1 left out; 10 to 21 tokens",
        "answers   12: 2 per row",
        f"weights   {model}",
        "sampling  temperature 0.7, seed 0, top_p 0.9, stop ['\\n\\n'], at most 8 tokens, 4 at once",
        f"output    {task.output}",
        "nothing was generated (--dry-run)",
    ]
    assert files(task.folder) == before


def test_a_dry_run_refuses_what_the_run_would_refuse(task: Task, run: Callable):
    task.output.write_text("")
    for input_, reason in [(task.ask(), "already exists"), (task.ask(["{broken"], "bad.jsonl"), "bad.jsonl:1: ")]:
        assert reason in run(task.config, input_, task.output, *BASE, "--dry-run", expect=2).stderr


def test_an_output_that_is_there_is_replaced_only_when_told_so(task: Task, run: Callable):
    task.output.write_text("precious\n")
    message = run(task.config, task.ask(), task.output, *BASE, expect=2).stderr
    assert "out.jsonl already exists; choose another name, or replace it with --overwrite" in message
    assert task.output.read_text() == "precious\n"
    run(task.config, task.ask(), task.output, *BASE, "--overwrite")
    assert len(task.answers()) == 6


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (
            "training.max_steps=3",
            "--set training.max_steps=3: this command reads only model, models, chat, on_bad_record, run",
        ),
        ("generaton.n=3", "--set generaton.n=3: this command reads only"),
        ("generation.nn=3", "generation.nn"),
        ("generation.n=0", "generation.n"),
        ("generation.n=2", "the same answer 2 times; raise the temperature"),
        ("generation.min_p=4096", "generation.min_p"),
        ("generation", "write it as key=value"),
    ],
)
def test_wrong_overrides_are_refused(task: Task, run: Callable, option: str, reason: str):
    result = run(task.config, task.ask(), task.output, *BASE, "--set", option, expect=2)
    assert reason in result.stderr
    assert not task.output.exists()


def test_a_misspelled_section_is_not_passed_over(task: Task, run: Callable):
    task.change("generaton", n=3)
    message = run(task.config, task.ask(), task.output, *BASE, expect=2).stderr
    assert "task.yaml: unknown section 'generaton'; did you mean 'generation'?" in message


def test_each_sampling_option_reaches_its_own_place(task: Task, run: Callable):
    """Another toolkit passed max_output_tokens as min_p, so every option has a distinct value here."""
    from posttrain.inference.config import load_inference_config
    from posttrain.inference.engine import Sampling

    options = {
        "max_new_tokens": 11, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125,
        "repetition_penalty": 1.5, "stop": ("x",), "logprobs": True,
    }  # fmt: skip
    task.change("generation", **{**options, "stop": ["x"]})
    generation = load_inference_config(task.config).generation
    assert vars(Sampling.of(generation, logprobs=generation.logprobs)) == options


def test_the_configs_of_other_trainers_are_read_too(task: Task, run: Callable):
    for sections in (
        {"pairs": {"path": "p.jsonl"}, "beta": 0.1},
        {"rollout": {"engine": "hf"}, "server": {}, "stages": None},
    ):
        text = task.config.read_text() + "".join(f"{key}: {value}\n" for key, value in sections.items() if value)
        (task.folder / "other.yaml").write_text(text)
        run(task.folder / "other.yaml", task.ask(), task.output, *BASE, "--overwrite")


def test_relative_paths_start_from_the_current_folder(task: Task, run: Callable, monkeypatch: pytest.MonkeyPatch):
    (task.folder / "sub").mkdir()
    task.ask()
    monkeypatch.chdir(task.folder / "sub")
    run("../task.yaml", "../in.jsonl", "out.jsonl", *BASE)
    assert [path.name for path in (task.folder / "sub").iterdir()] == ["out.jsonl"]


def test_debug_shows_where_an_error_was_raised(task: Task):
    arguments = [str(task.config), str(task.folder / "none.jsonl"), str(task.output), *BASE, "--debug"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr and "match_files" in result.stderr


def test_the_version_is_printed(run: Callable):
    assert run("--version").stdout.startswith("posttrain-toolkit ")
