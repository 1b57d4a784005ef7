"""Installs all trackers together in an environment of its own, and runs the tests that need them.

python checks/trackers.py

The environment is .venv/trackers and adds their packages to this one, in twenty seconds. pip resolves them with what is
pinned, so this fails where a pin shuts one of them out.
"""

import subprocess
import tomllib

from engines import ROOT, environment

TRACKERS = ("wandb", "trackio", "mlflow")
"""Extras of pyproject.toml; TensorBoard is in the development environment."""
CONSTRAINTS = ("constraints-cpu.txt", "constraints-trackers.txt")
TESTS = ("tests/supply_chain/test_tracker_packages.py", "tests/train/trackers")


def main() -> None:
    """Build the environment if something has changed, and run the tests."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    install = [requirement for name in TRACKERS for requirement in extras[name]]
    constraints = [word for file in CONSTRAINTS for word in ("-c", file)]
    pins = "".join((ROOT / file).read_text() for file in CONSTRAINTS)
    python = environment(ROOT / ".venv" / "trackers", [*constraints, *install], pins=pins, also=[ROOT / "src"])
    command = [python, "-m", "pytest", "-q", "-n", "0", "-m", "trackers", *TESTS]
    raise SystemExit(subprocess.run(command, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
