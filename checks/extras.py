"""Installs the extras that are not in the development environment, all together, and runs the tests that need them.

python checks/extras.py

The environment is .venv/extras and adds their packages to this one, in less than a minute. pip resolves them with what
is pinned, so this fails where a pin shuts one out.
"""

import subprocess
import tomllib

from engines import ROOT, environment

EXTRAS = ("wandb", "trackio", "mlflow", "lm-eval", "remote")
"""Extras of pyproject.toml."""
STORES = ("moto[s3]", "flask", "flask-cors", "gcp-storage-emulator")
"""Object stores for the tests; of moto's extra `server`, only what S3 needs."""
CONSTRAINTS = ("constraints-cpu.txt", "constraints-extras.txt")
TESTS = (
    "tests/supply_chain/test_extra_packages.py",
    "tests/train/trackers",
    "tests/evaluate/test_lm_eval_task.py",
    "tests/data/readers",
    "tests/cli/test_remote_data.py",
)


def main() -> None:
    """Build the environment if something has changed, and run the tests."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    # Without references to extras that are here.
    wanted = [requirement for name in EXTRAS for requirement in extras[name]]
    install = [each for each in wanted if not each.startswith("posttrain-toolkit")]
    constraints = [word for file in CONSTRAINTS for word in ("-c", file)]
    pins = "".join((ROOT / file).read_text() for file in CONSTRAINTS)
    python = environment(ROOT / ".venv" / "extras", [*constraints, *install, *STORES], pins=pins, also=[ROOT / "src"])
    command = [python, "-m", "pytest", "-q", "-n", "0", "-m", "extras", *TESTS]
    raise SystemExit(subprocess.run(command, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
