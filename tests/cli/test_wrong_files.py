"""Invalid or missing config files, missing models, and run folders that cannot be used."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

Edit = Callable[[str, str], None]
Refusal = Callable[..., str]

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))

# What is wrong: the whole file, and the message.
NO_CONFIG = {
    "nothing in it": (b"", "run.yaml: the file is empty; a config is a list of `key: value` lines"),
    "only comments": (b"# later\n", "run.yaml: the file is empty; a config is a list of `key: value` lines"),
    "a list": (b"- model\n", "run.yaml:1: the file contains a list; a config is `key: value` lines"),
    "a tab": (b"chat:\n\tmax_length: 64\n", "any token; indent with spaces"),
    "a key twice": (
        b"model: {name: a}\nmodel: {name: b}\n",
        "run.yaml:2: model: given twice, first on line 1; keep one",
    ),
    "an open quote": (
        b"run:\n  name: 'x\nlora: null\n",
        "run.yaml:4: while scanning a quoted scalar on line 2, found",
    ),
    "an open bracket": (b"stages: [a\nlora: null\n", "run.yaml:2: while parsing a flow sequence on line 1, expected"),
    "a tag": (b"model: !!python/name:os.system\n", "run.yaml:1: model: the tag `!!python/name:os.system` is not"),
    "two documents": (b"a: 1\n---\nb: 2\n", "run.yaml:2: expected a single document"),
    "UTF-16": ("model: x\n".encode("utf-16"), "run.yaml:1: not UTF-8 text; save the file as UTF-8"),
    "Latin-1": (b"model:\n  name: caf\xe9\n", "run.yaml:2: not UTF-8 text; save the file as UTF-8"),
    "megabytes": (b"# x\n" * 300_000, "run.yaml: larger than 1024 KiB; is this a config file?"),
    "a bomb of aliases": (LAUGHS.encode(), "the aliases expand to more than 100000 values"),
}


@pytest.mark.parametrize(("data", "message"), NO_CONFIG.values(), ids=NO_CONFIG.keys())
def test_a_file_that_is_no_config_is_refused_at_once(data: bytes, message: str, folder: Path, refusal: Refusal):
    (folder / "run.yaml").write_bytes(data)
    started = time.monotonic()
    assert message in refusal("run.yaml")
    assert time.monotonic() - started < 5


def test_a_config_that_is_not_there_is_told_with_the_folder_in_which_it_was_sought(folder: Path, refusal: Refusal):
    assert refusal("rum.yaml") == f"rum.yaml: there is no such file; check the path, which is relative to {folder}"
    assert refusal("tiny") == "tiny: this is a folder; give the YAML file in it"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.csv", "rows.parquet"])
def test_data_in_the_place_of_a_config_are_told_as_what_they_are(name: str, folder: Path, refusal: Refusal):
    assert refusal(name).startswith(f"{name} is data, not a config; toolkit-init --data {name}")


# What is wrong: `model.name`, and the message; {here} is the config's folder.
NO_MODEL = {
    "a folder that is not there": ("./tyni", "model.name: there is no folder {here}/tyni"),
    "a folder that is misspelt behind one that is there": (
        "tiny/one",
        "model.name: there is no folder {here}/tiny/one",
    ),
    "a folder without a model": (".", "model.name: {here} has no config.json, so it is not a model folder"),
    "a GGUF file that is not there": ("tiny.gguf", "model.name: there is no file {here}/tiny.gguf; did you mean tiny?"),
    "too many slashes": (
        "a/b/c",
        "model.name: 'a/b/c' is neither a folder, nor a Hugging Face id such as owner/name, nor one of the packaged "
        "models: smollm2-135m-instruct",
    ),
}


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
@pytest.mark.parametrize(("name", "message"), NO_MODEL.values(), ids=NO_MODEL.keys())
def test_a_model_that_is_not_there_is_told_before_any_data_are_read(
    name: str, message: str, start: list[str], folder: Path, edit_config: Edit, refusal: Refusal
):
    edit_config("name: tiny", f"name: {name}")
    assert refusal("run.yaml", *start) == message.format(here=folder)


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
def test_a_model_that_only_the_hub_could_have_is_told_with_what_to_give_instead(
    start: list[str], edit_config: Edit, refusal: Refusal
):
    edit_config("name: tiny", "name: nobody/nothing")
    message = refusal("run.yaml", *start)
    assert message.startswith("model.name: cannot load 'nobody/nothing': ")
    assert "without a hub, give a local folder, a .gguf file or smollm2-135m-instruct" in message


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
def test_an_adapter_that_is_not_there_is_refused(start: list[str], folder: Path, edit_config: Edit, refusal: Refusal):
    edit_config("backend: hf", "adapter: old")
    assert f"{folder}/old has no adapter_config.json, so it is not a LoRA adapter" in refusal("run.yaml", *start)


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
def test_a_run_that_is_there_is_never_replaced_unasked(start: list[str], folder: Path, refusal: Refusal):
    (folder / "runs/run").mkdir(parents=True)
    (folder / "runs/run/notes.txt").write_text("mine")
    assert refusal("run.yaml", *start) == (
        f"a run already exists in {folder}/runs/run; continue it with --resume, replace it with --overwrite, "
        "or give this one its own name with --run-name"
    )
    assert refusal("run.yaml", "--overwrite", *start) == (
        f"{folder}/runs/run is not empty, and not a run's folder; choose another --run-name"
    )


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
def test_a_file_where_the_runs_are_to_be_kept_is_refused(
    start: list[str], folder: Path, edit_config: Edit, refusal: Refusal
):
    message = f"run.output_dir: {folder}/sums.jsonl is a file, so no run can be kept in it; name a folder"
    for output_dir in ("sums.jsonl", "sums.jsonl/deeper/still"):
        edit_config("", f"run: {{output_dir: {output_dir}}}")
        assert refusal("run.yaml", *start) == message
    (folder / "runs").mkdir()
    (folder / "runs/run").touch()
    edit_config("", "")
    assert refusal("run.yaml", *start) == (f"{folder}/runs/run is a file; choose another run.output_dir or --run-name")
