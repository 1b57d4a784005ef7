"""The parts of llama.cpp are taken from the user's folder first, and what is nowhere is refused by name."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from posttrain.export.llama_cpp import CONVERTER, find_llama_cpp

HAS_PACKAGES = find_spec("xllamacpp") is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source tree with its programs built."""
    (tmp_path / "build" / "bin").mkdir(parents=True)
    (tmp_path / CONVERTER).touch()
    for name in ("llama-server", "llama-quantize"):
        (tmp_path / "build" / "bin" / name).touch(mode=0o755)
    return tmp_path


def test_a_built_tree_has_all_parts(folder: Path):
    found = find_llama_cpp(folder, "q4_k_m")
    assert found.converter == folder / CONVERTER
    assert found.server == folder / "build" / "bin" / "llama-server"
    assert found.quantiser == folder / "build" / "bin" / "llama-quantize"


@pytest.mark.parametrize("place", ["bin", "."])
def test_programs_may_be_where_an_installation_has_them(folder: Path, place: str):
    (folder / "bin").mkdir()
    for name in ("llama-server", "llama-quantize"):
        (folder / "build" / "bin" / name).rename(folder / place / name)
    assert find_llama_cpp(folder, "q4_k_m").server == folder / place / "llama-server"


def test_the_server_is_told_the_file_the_socket_and_the_length(folder: Path):
    command = find_llama_cpp(folder, "f32").server_command(Path("/m.gguf"), Path("/s.sock"), 320)
    told = ["--model", "/m.gguf", "--host", "/s.sock", "--ctx-size", "320"]
    assert command[:7] == [str(folder / "build/bin/llama-server"), *told]


def test_a_folder_with_nothing_of_it_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--llama-cpp: .* holds none of convert_hf_to_gguf\.py"):
        find_llama_cpp(tmp_path, "q8_0")
    with pytest.raises(ConfigError, match="--llama-cpp"):
        find_llama_cpp(tmp_path / "missing", "q8_0")


def test_a_program_that_cannot_be_run_is_none(folder: Path):
    (folder / "build/bin/llama-quantize").chmod(0o644)
    with pytest.raises(ConfigError, match=r"--type q4_k_m needs .*llama-quantize, and .* does not have it"):
        find_llama_cpp(folder, "q4_k_m")
    assert find_llama_cpp(folder, "q8_0").quantiser is None


def test_a_type_that_no_package_can_write_says_what_can_be_done():
    with pytest.raises(ConfigError, match=r"the packages .* do not have it.*--llama-cpp, or choose one of f32, f16"):
        find_llama_cpp(None, "q4_k_m")


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (CONVERTER, r"there is no convert_hf_to_gguf\.py: pip install"),
        ("build/bin/llama-server", "no llama.cpp server"),
    ],
)
def test_a_part_that_is_nowhere_is_refused_with_the_command_that_installs_it(folder: Path, part: str, told: str):
    assert not HAS_PACKAGES, "these packages are not part of the development environment"
    (folder / part).unlink()
    with pytest.raises(ConfigError, match=told):
        find_llama_cpp(folder, "q8_0")
