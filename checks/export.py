"""Installs llama.cpp's packages in an environment of its own, and runs the tests that need them.

python checks/export.py

The environment is .venv/export and adds the packages of requirements-gguf.txt to this one. The tests train, merge and
export the packaged model, and render a Modelfile's template with Go.
"""

import shutil
import subprocess

from engines import ROOT, environment

REQUIREMENTS = "requirements-gguf.txt"
TESTS = ("tests/supply_chain/test_gguf_packages.py", "tests/export")


def main() -> None:
    """Build the environment if the requirements have changed, and run the tests."""
    if shutil.which("go") is None:
        raise SystemExit("the tests need Go; on Debian: sudo apt-get install --no-install-recommends golang-go")
    install = ["--no-deps", "--require-hashes", "-r", REQUIREMENTS]
    pins = (ROOT / REQUIREMENTS).read_text(encoding="utf-8")
    python = environment(ROOT / ".venv" / "export", install, pins=pins, also=[ROOT / "src"])
    command = [python, "-m", "pytest", "-q", "-n", "0", "-m", "gguf", *TESTS]
    raise SystemExit(subprocess.run(command, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
