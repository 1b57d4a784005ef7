"""The commands in docs/security.md run and do what the page says."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from pickle_traps import torch_pickle
from safetensors.torch import load_file

from dataserver.serving import a_config
from posttrain.config.sections.model import ModelConfig
from posttrain.models.hf import HfBackend
from posttrain.models.location import CONVERT
from running import BIN

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SERVE, CONVERSION, LICENCES = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def shell(commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the commands of a block in a shell with the toolkit's environment activated."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    words = ["bash", "-euo", "pipefail", "-c", commands]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_a_token_is_made_and_taken_from_the_environment(tmp_path: Path) -> None:
    a_config(tmp_path).rename(tmp_path / "data.yaml")

    said = shell(f'{SERVE}\necho "${{#DATASERVER_TOKEN}} letters"', tmp_path)

    assert said.returncode == 0, said.stderr
    assert said.stdout.endswith("64 letters\n")


def test_pickled_weights_become_safetensors_that_load(tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    # torch.save writes tied weights, here the embedding and the head, as one shared tensor.
    tied = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
    torch.save(tied, folder / "pytorch_model.bin")

    said = shell(CONVERSION, folder)

    assert said.returncode == 0, said.stderr
    loaded = HfBackend().load_for_inference(ModelConfig(name=str(folder), dtype="float32"), None, chatml=False)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, tied[name].float()), name


def test_a_pickle_that_is_more_than_weights_is_not_converted(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(torch_pickle(tmp_path / "sprung"))

    said = shell(CONVERSION, tmp_path)

    assert said.returncode == 1
    assert "UnpicklingError" in said.stderr
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "model.safetensors").exists()


def test_the_licences_are_checked() -> None:
    said = shell(LICENCES, ROOT)
    assert (said.returncode, said.stderr) == (0, "")


def test_the_audit_is_a_target_of_make() -> None:
    """A dry run, because the audit queries a network service."""
    planned = shell("make --dry-run audit", ROOT)
    assert planned.returncode == 0, planned.stderr
    assert "pip-audit --strict" in planned.stdout


def test_messages_that_send_people_to_the_page_find_it() -> None:
    assert "docs/security.md" in CONVERT
    assert (ROOT / "docs" / "security.md").is_file()


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", PAGE))
def test_its_links_lead_somewhere(link: str) -> None:
    file, _, heading = link.partition("#")
    text = (ROOT / "docs" / file).read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-") for line in text.splitlines()}
    assert not heading or heading in headings
