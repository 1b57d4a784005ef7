"""llama.cpp's packages are pinned by version and hash, installed as pinned, and may be used."""

import re
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from supply_chain.test_pinned_packages import LICENCES, OWN, normal

ROOT = Path(__file__).parents[2]
REQUIREMENTS = (ROOT / "requirements-gguf.txt").read_text(encoding="utf-8")
PINS = {normal(name): version for name, version in re.findall(r"^([\w-]+)==([\w.]+) \\$", REQUIREMENTS, re.MULTILINE)}


def test_every_package_has_a_version_and_hashes() -> None:
    entries = re.sub(r"^#.*\n", "", REQUIREMENTS, flags=re.MULTILINE).replace("\\\n", "").splitlines()
    assert len(entries) == len(PINS) == 3
    for entry in entries:
        assert re.fullmatch(r"[\w-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", entry), entry


def test_the_extra_names_the_same_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = dict(each.split("==") for each in project["optional-dependencies"]["gguf"] if "==" in each)
    assert {normal(name): version for name, version in named.items()} == PINS


@pytest.mark.gguf
def test_what_is_installed_is_what_is_pinned_and_may_be_used() -> None:
    (site,) = Path(sys.prefix).glob("lib/python*/site-packages")
    found = {normal(each.metadata["Name"]): each for each in distributions(path=[str(site)])}
    assert {name: each.version for name, each in found.items() if name not in OWN} == PINS
    for name in PINS:
        licence = LICENCES.licence_of(found[name])
        assert LICENCES.is_allowed(name, licence), (name, licence)
