"""Python code shipped with a model runs only if the config allows it, and then with a notice."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostile.hostile_models import model_with_code
from hostile.hostile_values import require_readable
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import DataError, ModelError
from posttrain.models.hf import HfBackend
from posttrain.models.load import choose_backend
from running import BIN

ROW = {"prompt": "What is 1 + 1?", "completion": "2"}
ALOUD = "model.trust_remote_code: Python code shipped with {name} runs with your permissions\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with rows to train on and predict from, and its own cache for remote code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(ROW) + "\n" for _ in range(4)))
    return tmp_path


def write_config(folder: Path, **model: Any) -> None:
    config = {
        "model": {"name": "./model", "backend": "hf", **model},
        "chat": {"max_length": 64},
        "datasets": {"d": {"path": "rows.jsonl"}},
        "stages": [{"name": "s", "until_step": 1, "mix": {"d": 1}}],
        "training": {"rows_per_step": 2, "micro_batch_size": 2, "compile": False},
        "generation": {"max_new_tokens": 2},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))


def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the config in a subprocess, because code that ran once stays imported."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [BIN / command, "run.yaml", *arguments], capture_output=True, text=True, timeout=200, env=environment
    )


LOADING = {
    "toolkit-sft": (),
    "toolkit-sft --dry-run": ("--dry-run",),
    "toolkit-predict": ("rows.jsonl", "out.jsonl", "--weights", "base"),
}
LONG = ("toolkit-sft", "toolkit-sft --dry-run")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in LOADING]
)
def test_code_that_a_model_brings_along_is_not_run_unasked(name: str, folder: Path, tiny_model: Path):
    canary = model_with_code(tiny_model, folder / "model", of_its_own_kind=True)
    write_config(folder)
    ended = run(name.split()[0], *LOADING[name])
    assert not canary.exists()
    assert (ended.returncode, ended.stdout) == (2, "")
    require_readable(ended.stderr)
    assert ended.stderr == (
        f"error: model.name: {folder}/model has a custom architecture, defined by Python code that comes with it; "
        "read that code, and if you trust it set model.trust_remote_code: true\n"
    )


@pytest.mark.long
def test_code_that_is_trusted_is_run_and_told_once_by_each_command(folder: Path, tiny_model: Path):
    canary = model_with_code(tiny_model, folder / "model", of_its_own_kind=True)
    write_config(folder, trust_remote_code=True)
    commands = [
        ("toolkit-sft", ()),
        ("toolkit-merge", ("--no-verify",)),
        ("toolkit-predict", ("rows.jsonl", "out.jsonl")),
    ]
    for command, arguments in commands:
        canary.unlink(missing_ok=True)
        ended = run(command, *arguments)
        assert ended.returncode == 0, ended.stderr
        assert canary.read_text() == "it ran"
        assert ended.stderr.count("runs with your permissions") == 1, ended.stderr
        assert "model.trust_remote_code: Python code shipped with " in ended.stderr
    assert (folder / "out.jsonl").read_text().count("\n") == 4


def test_code_that_is_trusted_is_run_once_it_was_told(folder: Path, tiny_model: Path):
    canary = model_with_code(tiny_model, folder / "model", of_its_own_kind=True)
    config = ModelConfig(name=str(folder / "model"), backend="hf", trust_remote_code=True)
    script = f"""
from posttrain.config.sections.model import ModelConfig
from posttrain.models.load import choose_backend

config = ModelConfig.model_validate_json({config.model_dump_json()!r})
for _ in range(2):
    choose_backend(config).load_tokenizer(config, chatml=True)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert canary.read_text() == "it ran"
    assert ended.stderr == ALOUD.format(name=config.name)


def test_code_beside_a_model_of_a_known_kind_is_passed_over(folder: Path, tiny_model: Path, capsys: Any):
    canary = model_with_code(tiny_model, folder / "model", of_its_own_kind=False)
    config = ModelConfig(name=str(folder / "model"), backend="hf")
    loaded = HfBackend().load_for_inference(config, None, chatml=True)
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert not canary.exists()
    assert "trust_remote_code" not in capsys.readouterr().err


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_the_tokenizer_or_of_the_model_alone_is_not_run_either(file: str, folder: Path, tiny_model: Path):
    canary = model_with_code(tiny_model, folder / "model", of_its_own_kind=True)
    # Restore the other file.
    other = {"config.json": "tokenizer_config.json", "tokenizer_config.json": "config.json"}[file]
    shutil.copyfile(tiny_model / other, folder / "model" / other)
    config = ModelConfig(name=str(folder / "model"), backend="hf")
    with pytest.raises(ModelError, match=r"model\.trust_remote_code: true"):
        choose_backend(config).load_for_inference(config, None, chatml=True)
    assert not canary.exists()


def test_code_beside_a_gguf_file_is_never_run(folder: Path, tiny_model: Path):
    canary = model_with_code(tiny_model, folder / "model", of_its_own_kind=True)
    (folder / "model/weights.gguf").write_bytes(b"GGUF" + bytes(100))
    config = ModelConfig(name=str(folder / "model/weights.gguf"), backend="hf", trust_remote_code=True)
    with pytest.raises(ModelError):
        choose_backend(config).load_tokenizer(config, chatml=True)
    assert not canary.exists()


# Templates that try to do more than render a conversation, keyed by what they try.
TEMPLATES = {
    "to reach Python": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "to reach what it is given": "{{ messages.__class__.__init__.__globals__ }}",
    "to call what formats": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "to change what it is given": "{{ messages.append(1) }}",
    "to read a file": "{% include '/etc/passwd' %}",
    "to import": "{% import 'os' as os %}{{ os.getcwd() }}",
    "to count for ever": "{% for i in range(10**9) %}x{% endfor %}",
    "to fill the memory": "{{ 'x' * 10**12 }}",
    "to call itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "to divide by nothing": "{{ 1 // 0 }}",
    "to be no template": "{% for %}",
    "to raise": "{{ raise_exception('\x1b[31m') }}",
    "to use what is not there": "{{ nothing.at.all }}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_chat_template_that_does_more_than_write_is_refused(template: str, tiny_model: Path):
    config = ModelConfig(name=str(tiny_model), backend="hf")
    tokenizer: Any = HfBackend().load_tokenizer(config, chatml=True)
    tokenizer.chat_template = template
    encoder = conversation_encoder(ChatConfig(template="tokenizer"), tokenizer)
    with pytest.raises(DataError, match="the chat template"):
        encoder.prompts([Conversation((Message("user", "hello"),))])
