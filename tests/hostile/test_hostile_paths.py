"""Names that become folders, and symlinks: nothing outside the intended folder is written or removed."""

import json
import os
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli.refusals import contents, the_one_error
from hostile.hostile_values import ODD_TEXTS, STEERS, profiles, refusal_of, texts, tried
from posttrain.config.load import load_config
from posttrain.config.sections.model import ModelConfig, run_of_model
from posttrain.config.sections.run import RunConfig, require_run_name
from posttrain.conversation.chatml import render
from posttrain.conversation.messages import Conversation, Message
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.loading import confined_data, load_rows
from posttrain.dataserver.graders.llm_judge import fill_template
from posttrain.errors import ConfigError, DataError
from posttrain.runs.checks import choose_run_name
from posttrain.runs.directory import RunDirectory, check_run_directory, clear_run_directory
from posttrain.runs.trained_run import load_trained_run
from posttrain.sft.config import SFTConfig
from test_shipped_configs import ROOT, class_of

# Names that lead elsewhere, or are not valid names.
NO_NAMES = [
    "",
    " ",
    ".",
    "..",
    "../x",
    "/tmp/x",
    "a/b",
    "a/",
    "./a",
    "a\0b",
    "a\nb",
    "a\rb",
    "\x1b[31m",
    "a\u202eb",
    "x" * 201,
    "é" * 101,
    "\udcff",
]
NAMES = [
    "a",
    "a.b",
    "-a",
    "--resume",
    "~",
    "~root",
    "a b",
    "..a",
    "a..",
    "名前",
    "a'b",
    "$(x)",
    "CON",
    "x" * 200,
    "%s",
    "{0}",
]


def folder_of(name: str) -> Path:
    """The folder of the run with that name, in `runs`."""
    return Path("runs") / run_of_model(name, (), None)


@pytest.mark.parametrize("name", NO_NAMES, ids=ascii)
def test_a_name_that_is_no_folders_is_refused_wherever_it_comes_from(name: str, tmp_path: Path):
    config = tmp_path / "run.yaml"
    messages = [
        refusal_of(lambda: require_run_name(name)),
        refusal_of(lambda: choose_run_name(name, RunConfig(), config)),
        refusal_of(lambda: folder_of(name)),
    ]
    assert all(message is not None and "a run's name must be a single folder name" in message for message in messages)
    assert messages[1] is not None and messages[1].startswith("--run-name: ")


@pytest.mark.parametrize("name", NAMES)
def test_any_other_name_is_one_folders(name: str):
    assert folder_of(name) == Path("runs", name)
    assert choose_run_name(name, RunConfig(), Path("run.yaml")) == name


@profiles(quick=300, long=10_000)
def test_a_name_that_is_taken_stays_in_the_folder_of_runs(examples: int):
    @tried(examples)
    @given(texts | st.sampled_from(NO_NAMES))
    def check(name: str) -> None:
        if refusal_of(lambda: folder_of(name)) is None:
            assert os.path.dirname(os.path.realpath(folder_of(name))) == os.path.realpath("runs")
            assert not STEERS.search(name) and "\n" not in name

    check()


@pytest.mark.parametrize("file", ["...yaml", "..yaml", "a\nb.yaml", "\x1b.yaml", f"{'x' * 230}.yaml"], ids=ascii)
def test_a_config_file_whose_name_is_no_folders_wants_a_run_name(file: str):
    with pytest.raises(ConfigError, match="the config file's name is the run's, unless --run-name gives one: a run's"):
        choose_run_name(None, RunConfig(), Path(file))
    assert choose_run_name("good", RunConfig(), Path(file)) == "good"


@pytest.mark.parametrize("model", ["a/..", "..", "a/../..", ".gguf", "/", "...", "a/."])
def test_the_folder_of_one_of_several_models_stays_in_the_run(model: str):
    models = [ModelConfig(name=model), ModelConfig(name="b")]
    assert Path(run_of_model("run", models, 0)).parts == ("run", "a" if model == "a/." else "model")


@pytest.mark.parametrize("command", ["sft", "dpo", "rl_train", "rl_debug", "merge", "predict"])
@pytest.mark.parametrize("name", ["../outside", "..", "/tmp", "a\nb"], ids=ascii)
def test_no_command_takes_a_run_name_that_leads_out_of_its_folder(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    model = {"model": {"name": "m"}}
    curriculum = {"datasets": {"d": {"path": "d.jsonl"}}, "stages": [{"name": "s", "until_step": 1, "mix": {"d": 1}}]}
    more = {"dataserver": {"url": "http://127.0.0.1:1"}} if command.startswith("rl") else curriculum
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**model, **more}))
    rest = ["in.jsonl", "out.jsonl"] if command == "predict" else []
    before = contents(tmp_path)
    result = CliRunner().invoke(
        import_module(f"posttrain.cli.{command}").main, ["run.yaml", *rest, f"--run-name={name}"]
    )
    assert result.exit_code == 2, result.output
    assert "a run's name must be a single folder name" in the_one_error(result.stderr, result.stdout)
    assert contents(tmp_path) == before


# The keys that name a file, folder or address, with their config.
PATH_KEYS = [
    ("sft_config_template.yaml", "model.name"),
    ("sft_config_template.yaml", "model.adapter"),
    ("sft_config_template.yaml", "run.output_dir"),
    ("sft_config_template.yaml", "run.name"),
    ("sft_config_template.yaml", "datasets.more.path"),
    ("sft_config_template.yaml", "stages.0.name"),
    ("dpo_config_template.yaml", "reference.name"),
    ("dpo_config_template.yaml", "datasets.more.path"),
    ("dpo_config_template.yaml", "validation.dataset.path"),
    ("rl_config_template.yaml", "dataserver.config"),
    ("rl_config_template.yaml", "dataserver.url"),
    ("rl_data_config_template.yaml", "data_root"),
    ("rl_data_config_template.yaml", "tokenizer"),
    ("rl_data_config_template.yaml", "journal.path"),
    ("rl_data_config_template.yaml", "journal.url"),
    ("rl_data_config_template.yaml", "graders.more.path"),
    ("rl_data_config_template.yaml", "listen.host"),
]
FEW_PATHS = ["", "..", "../x", "a\nb", "\x1b[31m", "é" * 300, "x/" * 2500, "~nobody/x"]
ODD_PATHS = [
    *NO_NAMES,
    *NAMES,
    *ODD_TEXTS,
    "x/" * 2500,
    "/" * 5000,
    "../" * 1000,
    "/proc/self/root" * 30,
    "~\0",
    "file:x",
]


@pytest.mark.parametrize(("template", "key"), PATH_KEYS, ids=[f"{file}-{key}" for file, key in PATH_KEYS])
@pytest.mark.parametrize("paths", [FEW_PATHS, pytest.param(ODD_PATHS, marks=pytest.mark.long)], ids=["quick", "long"])
def test_any_text_for_a_path_is_taken_or_refused(template: str, key: str, paths: list[str]):
    parts = key.split(".")
    for odd in paths:
        # YAML cannot hold a lone surrogate, but a shell argument that is not valid UTF-8 can.
        value = odd if key == "listen.host" else json.dumps(odd, ensure_ascii=False)
        typed = {"type": "python"} if parts[0] == "graders" else {"type": "model"} if parts[0] == "reference" else {}
        more = [f"{'.'.join(parts[:-1])}.{name}={kind}" for name, kind in typed.items()]
        message = refusal_of(
            lambda value=value, more=more: load_config(
                ROOT / template, class_of(ROOT / template), [*more, f"{key}={value}"]
            )
        )
        assert message is None or parts[0] in message or "--set" in message


@pytest.mark.parametrize("path", ["x" * 256, "x/" * 2000, "é" * 128])
def test_a_path_that_no_file_system_takes_is_refused_with_its_key(path: str, tmp_path: Path):
    for key in ("run.output_dir", "model.adapter", "datasets.more.path", "model.name"):
        message = refusal_of(
            lambda key=key: load_config(ROOT / "sft_config_template.yaml", SFTConfig, [f"{key}={path}"])
        )
        assert message is not None and f"{key}: the path is too long" in message


def data_outside(folder: Path) -> Path:
    """A data root in the folder, beside a folder that must not be reached from it."""
    (folder / "outside").mkdir()
    (folder / "outside/rows.jsonl").write_text('{"prompt": "q", "answer": "a"}\n')
    (folder / "root").mkdir()
    return folder / "root"


@pytest.mark.parametrize(
    "path",
    ["../outside/rows.jsonl", "link.jsonl", "folder/rows.jsonl", "folder/../../outside/rows.jsonl", "chain.jsonl"],
)
def test_no_path_and_no_link_leads_a_dataserver_out_of_its_data_root(path: str, tmp_path: Path):
    root = data_outside(tmp_path)
    (root / "link.jsonl").symlink_to("../outside/rows.jsonl")
    (root / "chain.jsonl").symlink_to("link.jsonl")
    (root / "folder").symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="outside data_root"):
        confined_data(root, path)
    with pytest.raises((DataError, ValueError), match="data_root"):
        load_rows(FileDataset(path=path, graders={"string_exact": 1.0}), root, "error", lambda _: None)


def a_run(folder: Path) -> RunDirectory:
    """A run's folder with symlinks to a folder and a file elsewhere, one of them in place of a checkpoint."""
    run = RunDirectory(folder / "runs/run")
    run.path.mkdir(parents=True)
    run.manifest.write_text("{}")
    (folder / "outside").mkdir()
    for name in ("precious.txt", "adapter_model.safetensors"):
        (folder / "outside" / name).write_text("mine")
    (run.path / "checkpoint-5").symlink_to(folder / "outside")
    (run.path / "metrics.jsonl").symlink_to(folder / "outside/precious.txt")
    (run.path / "plots").mkdir()
    (run.path / "plots/elsewhere").symlink_to(folder / "outside")
    (run.path / "loop").symlink_to("loop")
    return run


def test_replacing_a_run_removes_its_links_and_not_what_they_lead_to(tmp_path: Path):
    run = a_run(tmp_path)
    outside = contents(tmp_path / "outside")
    check_run_directory(run, resume=False, overwrite=True)
    clear_run_directory(run)
    assert list(run.path.iterdir()) == []
    assert contents(tmp_path / "outside") == outside


def test_a_run_that_is_a_link_to_another_folder_is_no_run(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious.txt").write_text("mine")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/run").symlink_to("../outside")
    run = RunDirectory(tmp_path / "runs/run")
    with pytest.raises(ConfigError, match="is not empty, and not a run's folder"):
        check_run_directory(run, resume=False, overwrite=True)
    (tmp_path / "runs/loop").symlink_to("loop")
    with pytest.raises((ConfigError, OSError)):
        clear_run_directory(RunDirectory(tmp_path / "runs/loop"))


def test_the_run_of_a_config_stays_in_its_folder_of_runs(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/config.yaml").write_text("model: {name: m}\n")
    for name in ("../outside", "..", "/tmp"):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({"run": {"name": name}}))
        message = refusal_of(lambda: load_trained_run(tmp_path / "run.yaml"))
        assert message is not None and "a run's name must be a single folder name" in message


@profiles(quick=200, long=5000)
def test_no_text_is_taken_for_a_format_a_template_or_markup(examples: int):
    @tried(examples)
    @given(st.sampled_from(ODD_TEXTS) | st.text())
    def check(text: str) -> None:
        written = "".join(segment.text for segment in render(Conversation((Message("user", text),))))
        assert written == f"<|im_start|>user\n{text}<|im_end|>\n"

    check()


def test_a_judge_is_told_what_was_said_as_it_was_said():
    said = "{gold} {answer} {reply} {question.__class__.__init__.__globals__} {0} %(x)s {{ 7 * 7 }}"
    told = fill_template("{question} {0.__class__} %s {answer}", "binary", said, "the-right-answer", said)
    assert "the-right-answer" not in told
    assert told.count(said) == 2
    assert "{0.__class__} %s" in told
