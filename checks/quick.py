"""Checks what changed since the last commit: the inner loop of `make quick`.

python checks/quick.py lint|tests

`lint` checks the style and types of the changed files, the types of files that import them, and the layers and shape of
everything. `tests` starts tests for 40 seconds: changed tests, then tests that import a changed module, then those of
its package, then a few of each package. It skips tests that are slow or need a server, a browser, an engine or several
processes.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SECONDS = 40
LEFT_OUT = ("slow", "postgres", "browser", "vllm", "unsloth", "ranks", "long", "gpu")
# Quick, and between them they read a config, tokenise, train, and grade.
A_FEW = (
    "config/test_config_load.py",
    "config/test_config_strict.py",
    "conversation",
    "data/curriculum",
    "data/test_preparation.py",
    "dataserver/grading/test_rewards.py",
    "dpo/test_dpo_losses.py",
    "rl/test_advantages.py",
    "rl/test_losses.py",
    "train/test_loop.py",
)


def main() -> None:
    """Run the commands that the command line asks for."""
    commands = {"lint": lint, "tests": tests}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        raise SystemExit(f"usage: python checks/quick.py {'|'.join(commands)}")
    raise SystemExit(max(run(*command) for command in commands[sys.argv[1]](changed_files())))


def run(*command: str | Path) -> int:
    """Run a command; returns its exit code."""
    return subprocess.run(command, cwd=ROOT).returncode


def changed_files() -> list[Path]:
    """Python files that differ from the last commit or are not in it, relative to the repository."""
    commands = (["diff", "--name-only", "--diff-filter=d", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    names = "".join(subprocess.check_output(["git", *words], cwd=ROOT, text=True) for words in commands)
    return sorted({Path(name) for name in names.splitlines() if name.endswith(".py")})


def lint(changed: list[Path]) -> Iterator[list[str | Path]]:
    """The lint commands, the quick ones first."""
    if changed:
        yield [BIN / "ruff", "check", *changed]
        yield [BIN / "ruff", "format", "--check", *changed]
    yield [BIN / "lint-imports"]
    yield [sys.executable, "checks/shape.py", "--check"]
    modules = {module_of(path) for path in changed if path.is_relative_to("src")}
    typed = [path for path in files("src") if module_of(path) in modules or modules & imports(path)]
    if typed:
        yield [BIN / "pyright", "--pythonpath", sys.executable, *typed]


def tests(changed: list[Path]) -> Iterator[list[str | Path]]:
    """One pytest command, with the files most likely to fail first."""
    chosen = dict.fromkeys(tests_of(changed))
    selection = " and ".join(f"not {marker}" for marker in LEFT_OUT)
    yield [BIN / "pytest", "-m", selection, "--seconds", str(SECONDS), "--durations=5", *chosen]


def tests_of(changed: list[Path]) -> Iterator[Path]:
    """Test files, the most relevant first; a file may repeat."""
    all_tests = [path for path in files("tests") if path.name.startswith("test_")]
    yield from (path for path in all_tests if path in changed)
    sources = [path for path in changed if path.is_relative_to("src")]
    modules = {module_of(path) for path in [*sources, *changed_helpers(changed)]}
    yield from (path for path in all_tests if modules & imports(path))
    for source in sources:
        folder = Path("tests", *source.parts[2:-1])
        while not (ROOT / folder).is_dir():
            folder = folder.parent
        package = [path for path in all_tests if path.is_relative_to(folder) and folder != Path("tests")]
        yield from sorted(package, key=lambda path: source.stem not in path.stem)
    for few in A_FEW:
        yield from (path for path in all_tests if path.is_relative_to(Path("tests") / few))


def changed_helpers(changed: list[Path]) -> Iterable[Path]:
    """Changed modules that tests import from each other."""
    return (path for path in changed if path.is_relative_to("tests") and not path.name.startswith("test_"))


def files(place: str) -> list[Path]:
    """Every Python file in a folder, relative to the repository."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / place).rglob("*.py"))


def module_of(path: Path) -> str:
    """The name under which it is imported."""
    return ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")


@cache
def imports(path: Path) -> set[str]:
    """What a file imports, at the top or within a function: `from a.b import c` may mean `a.b` or `a.b.c`."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


if __name__ == "__main__":
    main()
