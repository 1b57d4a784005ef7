"""What a model was made from: its id where there is one, its licence where one is named, and never a path."""

from pathlib import Path

import pytest

from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError
from posttrain.hub.base_model import base_model, require_base


def nobody(model: str) -> str | None:
    raise AssertionError(f"{model} was asked for")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder; only its config is looked for."""
    (tmp_path / "my-base").mkdir()
    (tmp_path / "my-base" / "config.json").write_text("{}")
    return tmp_path / "my-base"


def test_a_hub_id_is_the_base_and_its_page_names_the_licence() -> None:
    found = base_model(ModelConfig(name="owner/base", revision="v2"), None, None, lambda model: f"licence of {model}")
    assert (found.name, found.repo, found.revision) == ("owner/base", "owner/base", "v2")
    assert found.licence == "licence of owner/base"


def test_the_packaged_model_has_a_licence_in_its_file_and_no_id() -> None:
    found = base_model(ModelConfig(name="smollm2-135m-instruct"), None, None, nobody)
    assert (found.name, found.repo, found.licence) == ("smollm2-135m-instruct", None, "apache-2.0")
    with pytest.raises(ConfigError, match=r"smollm2-135m-instruct is known here only as local files; .* with --base"):
        require_base(found, "--base")


def test_a_folder_is_known_by_its_name_and_its_own_card_comes_before_the_hub(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the licence of the base my-base is not known") as caught:
        base_model(ModelConfig(name=str(folder)), None, None, nobody)
    assert str(folder) not in str(caught.value)
    (folder / "README.md").write_text("---\nlicense: gemma\n---\n")
    found = base_model(ModelConfig(name=str(folder)), "owner/base", None, nobody)
    assert (found.name, found.repo, found.revision, found.licence) == ("my-base", "owner/base", None, "gemma")
    assert base_model(ModelConfig(name=str(folder)), None, None, nobody).name == "my-base"


def test_what_the_user_says_comes_first(folder: Path) -> None:
    assert base_model(ModelConfig(name=str(folder)), None, "mit", nobody).licence == "mit"
    found = base_model(ModelConfig(name="owner/copy", revision="v2"), "owner/base", "mit", nobody)
    assert (found.repo, found.revision) == ("owner/base", None)
