"""checks/versions.py: the oldest supported versions, and the examples it runs."""

import runpy
from pathlib import Path
from types import SimpleNamespace

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
VERSIONS = SimpleNamespace(**runpy.run_path(str(ROOT / "checks" / "versions.py")))


def test_every_requirement_of_training_and_serving_names_its_oldest_version() -> None:
    oldest = dict(line.split("==") for line in VERSIONS.floors())

    assert {"trl", "transformers", "peft", "accelerate", "datasets", "fastapi", "pydantic"} <= set(oldest)
    for line in VERSIONS.PROJECT["optional-dependencies"]["train"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(oldest[requirement.name]), line


def test_the_examples_that_are_run_are_there() -> None:
    assert all((ROOT / config).is_file() for config, *_ in VERSIONS.ONE_STEP.values())
    assert set(VERSIONS.ONE_STEP) <= set(VERSIONS.PROJECT["scripts"])
