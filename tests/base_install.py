"""A Python interpreter that finds the toolkit and its base packages, and no others."""

import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

import posttrain


def base_python(folder: Path) -> Path:
    """Create a virtual environment in `folder` that links to what `pip install posttrain-toolkit` would install."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    own = distribution("posttrain-toolkit")
    _link(Path(posttrain.__path__[0]), site_packages)
    for package in [own, *_needed_by(own)]:
        for name in {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            _link(Path(str(package.locate_file(name))), site_packages)
    return folder / "bin" / "python"


def _needed_by(package: Distribution, seen: set[str] | None = None) -> list[Distribution]:
    """The packages that `package` requires without extras, directly or indirectly."""
    seen = set() if seen is None else seen
    found = []
    for line in package.requires or []:
        requirement = Requirement(line)
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        needed = distribution(requirement.name)
        found += [needed, *_needed_by(needed, seen)]
    return found


def _link(source: Path, folder: Path) -> None:
    # The .pth file of an editable install would expose the rest of the environment.
    if source.exists() and source.suffix != ".pth" and not (folder / source.name).exists():
        (folder / source.name).symlink_to(source)
