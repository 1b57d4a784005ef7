"""Resolve what a CUDA machine installs, trainers, vLLM and dataserver together, with the pins of constraints-cuda.txt.

Nothing is installed: pip looks for wheels of Linux on x86_64, on whatever machine this runs. Exit code 1 where the pins
do not fit together, or the index lacks a wheel.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints-cuda.txt"
EXTRAS = ("train", "server", "cuda", "vllm", "unsloth")
# Unlike on the machine itself, pip takes no wheel for an older glibc unless that is named too.
PLATFORMS = ("linux_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 36)))


def pins() -> list[str]:
    """The lines of the constraints."""
    return [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if "==" in line]


def requirements() -> list[str]:
    """What the base and the extras ask for, without the toolkit itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tables = [project["dependencies"], *(project["optional-dependencies"][name] for name in EXTRAS)]
    asked = [text for table in tables for text in table if not text.startswith("posttrain-toolkit")]
    # Some indexes have a CPU build too, such as 2.13.0+cpu, which `==` takes for newer than the CUDA build.
    return [*asked, *(line.replace("==", "===") for line in pins() if line.startswith("torch=="))]


def command(folder: str, report: Path) -> list[str]:
    """pip's dry run for another machine."""
    asked = ["--dry-run", "--quiet", "--ignore-installed", "--only-binary", ":all:", "--report", str(report)]
    machine = ["--python-version", "3.11", "--implementation", "cp", "--target", folder]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    constraints = ["--constraint", str(CONSTRAINTS)]
    return [sys.executable, "-m", "pip", "install", *asked, *machine, *platforms, *constraints, *requirements()]


def main() -> None:
    """Resolve, and print what was found."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        if subprocess.run(command(folder, report), check=False).returncode:
            sys.exit("what constraints-cuda.txt pins cannot be installed together; pip says why above")
        found = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in pins()}
    free = sorted(f"{each['name']}=={each['version']}" for each in found if _normal(each["name"]) not in pinned)
    told = f"{len(found)} packages for {', '.join(EXTRAS)}, {len(free)} of them not pinned: {' '.join(free)}\n"
    sys.stdout.write(told)


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    main()
