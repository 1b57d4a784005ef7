"""What makes a base model a different one under the same name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from posttrain.base import cache
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError, ModelError
from posttrain.models.location import weights_digest
from posttrain.runs.directory import RunDirectory, clear_run_directory
from posttrain.runs.manifest import describe_run
from posttrain.train.identity import known_weights, require_loaded_weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter folder as PEFT writes it, with arbitrary file contents."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights of an adapter")
    (folder / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8}')
    return folder


def digest(folder: Path, adapter: Path | None = None) -> str | None:
    return weights_digest(ModelConfig(name=str(folder), adapter=adapter))


def flip_a_bit(file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)


def test_a_copy_in_another_folder_is_the_same_model(model: Path, tmp_path: Path):
    other = shutil.copytree(model, tmp_path / "moved")
    found = digest(model)
    assert found is not None and len(found) == 32
    assert digest(Path(other)) == found


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_one_bit_of_the_weights_or_of_what_computes_with_them_makes_another_model(model: Path, file: str):
    before = digest(model)
    flip_a_bit(model / file)
    assert digest(model) != before


@pytest.mark.parametrize("file", ["tokenizer.json", "README.md", "generation_config.json"])
def test_what_decides_no_number_of_the_model_is_not_counted(model: Path, file: str):
    # A run's identity has a separate digest for the tokenizer.
    before = digest(model)
    (model / file).write_text("{}\n")
    assert digest(model) == before


def test_a_checkpoint_below_the_folder_is_not_the_model(model: Path):
    before = digest(model)
    (model / "checkpoint-3").mkdir()
    shutil.copy(model / "model.safetensors", model / "checkpoint-3")
    assert digest(model) == before


def test_two_shards_that_change_places_make_another_model(model: Path):
    one, two = model / "model-00001-of-00002.safetensors", model / "model-00002-of-00002.safetensors"
    one.write_bytes(b"one")
    two.write_bytes(b"two")
    before = digest(model)
    one.write_bytes(b"two")
    two.write_bytes(b"one")
    assert digest(model) != before


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
def test_the_adapter_that_training_goes_on_from_is_counted(model: Path, adapter: Path, file: str):
    before = digest(model, adapter)
    assert before != digest(model)
    flip_a_bit(adapter / file)
    assert digest(model, adapter) != before


def test_a_file_of_the_adapter_is_not_taken_for_one_of_the_base(model: Path, adapter: Path, tmp_path: Path):
    # The union of the files is the same in both cases.
    (adapter / "more.safetensors").write_bytes(b"more")
    before = digest(model, adapter)
    shutil.move(adapter / "more.safetensors", model)
    assert digest(model, adapter) != before


def test_a_gguf_file_counts_itself_and_is_not_converted_for_it(own_cache: Path, tmp_path: Path):
    packaged = weights_digest(ModelConfig(name="smollm2-135m-instruct"))
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF one")
    one = digest(tmp_path / "tiny.gguf")
    # Files beside it are not read.
    (tmp_path / "config.json").write_text("{}")
    assert digest(tmp_path / "tiny.gguf") == one
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF two")
    assert len({packaged, one, digest(tmp_path / "tiny.gguf"), None}) == 4
    assert not (own_cache.parent / "models").exists()


@pytest.mark.usefixtures("own_cache")
def test_large_files_are_read_once(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "_LEAST_BYTES", (model / "model.safetensors").stat().st_size)
    monkeypatch.setattr(cache, "_SETTLED_SECONDS", -1)
    read: list[str] = []
    whole = cache.content_digest

    def counted(path: Path) -> str:
        read.append(path.name)
        return whole(path)

    monkeypatch.setattr(cache, "content_digest", counted)
    assert digest(model) == digest(model)
    assert read == ["config.json", "model.safetensors", "config.json"]


def test_a_file_that_cannot_be_read_is_named(model: Path):
    # Nobody, not even root, can read the first bytes of a process's memory.
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("/proc/self/mem")
    with pytest.raises(ModelError, match=r"^model: cannot read \S+/model/model\.safetensors: Input/output error$"):
        digest(model)


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`hub(*names)` copies these model files into the hub cache as owner/name and returns the snapshot folder."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT

    def put(*names: str) -> Path:
        for folder in (repository / "refs", snapshot):
            folder.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / "main").write_text(COMMIT)
        for name in names:
            shutil.copy(model / name, snapshot)
        return snapshot

    return put


def test_the_weights_of_a_hubs_model_are_known_once_they_are_here(hub: Callable[..., Path], model: Path):
    named = ModelConfig(name="owner/name")
    assert weights_digest(named) is None
    hub("config.json", "tokenizer.json")
    assert weights_digest(named) is None
    hub("model.safetensors")
    assert weights_digest(named) == weights_digest(ModelConfig(name="owner/name", revision=COMMIT)) == digest(model)
    assert weights_digest(ModelConfig(name="owner/name", revision="v2")) is None


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"weight_map": []}'])
def test_a_hubs_model_of_which_a_shard_is_missing_is_not_known(hub: Callable[..., Path], damage: str):
    snapshot = hub("config.json")
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = snapshot / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}))
    known = []
    for shard in shards:
        (snapshot / shard).write_bytes(b"weights")
        known.append(weights_digest(ModelConfig(name="owner/name")) is not None)
    assert known == [False, True]
    index.write_text(damage)
    assert weights_digest(ModelConfig(name="owner/name")) is None


def test_weights_that_come_by_loading_are_compared_then(hub: Callable[..., Path], tmp_path: Path):
    named, run = ModelConfig(name="owner/name"), RunDirectory(tmp_path / "run")
    clear_run_directory(run)
    snapshot = hub("config.json")
    began: dict[str, Any] = {"seed": 0, **known_weights(named)}
    assert began == {"seed": 0}
    hub("model.safetensors")
    require_loaded_weights(run, began, named, resume=False)
    assert began == {"seed": 0, "weights": weights_digest(named)}
    run.write_json(run.manifest, describe_run(began, "toolkit-sft"))

    # Resumed on a machine with different weights under the same name, unknown until they were loaded.
    flip_a_bit(snapshot / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"\n  weights: {began['weights']} → {weights_digest(named)}\n"):
        require_loaded_weights(run, {"seed": 0}, named, resume=True)
    # Weights known at the start were compared then and are not read again.
    require_loaded_weights(run, dict(began), named, resume=True)
