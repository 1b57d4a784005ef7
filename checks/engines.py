"""Builds environments for real vLLM and SGLang servers on a CPU, and runs the tests that start them.

python checks/engines.py [vllm] [sglang] [--long]

Each environment is in .venv/engines and adds a few packages to this one: vLLM's server needs five small ones (seconds),
SGLang twelve (1.4 GB). SGLang has no build for a CPU; it runs on one because sglang_on_cpu/ stands in for its CUDA
kernels, which a CPU never calls.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv" / "engines"
STAND_INS = ROOT / "checks" / "sglang_on_cpu"
TESTS = {
    "vllm": ("tests/inference/servers/test_vllm_server.py", "tests/rl/rollout/test_rl_vllm_server.py"),
    "sglang": ("tests/inference/servers/test_sglang_server.py",),
}

PACKAGES = {
    "vllm": (
        "jmespath==1.1.0",
        "model-hosting-container-standards==0.1.16",
        "prometheus-fastapi-instrumentator==8.1.0",
        "supervisor==4.3.0",
        "watchfiles==1.3.0",
    ),
    "sglang": (
        "sglang==0.5.23",
        "cffi==2.1.1",
        "ipython==9.18.1",
        "orjson==3.13.0",
        "python-multipart==0.0.34",
        "scipy==1.17.1",
        "sentencepiece==0.2.3",
        "setproctitle==1.3.8",
        "soundfile==0.14.0",
        "torchvision==0.28.0",
        "traitlets==5.16.1",
        "triton==3.9.0",
    ),
}
"""Installed without their requirements, which include CUDA builds and older versions of packages that are here."""


def main() -> None:
    """Build what is missing, and run the tests of the servers named on the command line, or of both."""
    names = [word for word in sys.argv[1:] if word != "--long"] or list(PACKAGES)
    if unknown := set(names) - set(PACKAGES):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; python checks/engines.py [vllm] [sglang] [--long]")
    environment = {**os.environ, **{f"{name.upper()}_SERVER_PYTHON": str(built(name)) for name in names}}
    marks = ["-m", ""] if "--long" in sys.argv[1:] else []
    tests = [file for name in names for file in TESTS[name]]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *marks, *tests]
    raise SystemExit(subprocess.run(command, cwd=ROOT, env=environment).returncode)


def built(name: str) -> Path:
    """The interpreter of an environment for a server."""
    also = [STAND_INS] if name == "sglang" else []
    return environment(FOLDER / name, ["--no-deps", *PACKAGES[name]], also=also)


def environment(folder: Path, install: Sequence[str], *, pins: str = "", also: Sequence[Path] = ()) -> Path:
    """The interpreter of an environment on top of this one, built unless it is there.

    Args:
        install: what `pip install` is told.
        pins: the contents of the constraints that this names; the environment is built again if they change.
        also: folders with further modules.

    Raises:
        SystemExit: a package cannot be installed.
    """
    python, done = folder / "bin" / "python", folder / "packages.txt"
    wanted = "\n".join([*install, *map(str, also), pins])
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    paths = [sysconfig.get_paths()["purelib"], *map(str, also)]
    (own / "development.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    pip = [folder / "bin" / "pip", "--disable-pip-version-check", "--quiet", "install"]
    # What pip says of a success is about this environment's packages that come without their requirements.
    told = subprocess.run([*pip, *install], cwd=ROOT, capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(told.stdout + told.stderr)
    done.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    main()
