"""Counts the code and measures its shape: folders, module names, functions and files.

python checks/shape.py [--check]

Prints the numbers; with --check it lists only what exceeds a limit, and exits with code 1 if anything does.
"""

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("src", "tests", "benchmarks", "checks", "docs", "examples")

FILE_LINES = 350
"""A file has fewer lines."""
FUNCTION_LINES = 60
"""A function has fewer lines, from `def` to its end."""
FOLDER_ENTRIES = 15
"""A folder of the package has at most this many modules and folders, not counting `__init__.py`."""
NAME_USES = 3
"""At most this many modules of the package share a name."""

FAMILIES = {"graders", "losses", "filters", "environments", "cli", "posttrain"}
"""Folders with one file per member, named like it, and the top-level package: any number of entries, and any names."""
SHARED_NAMES = {"config.py", "recipe.py", "plan.py"}
"""Names that mean the same in every feature."""

_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Excess = Mapping[str, Mapping[str, int]]
"""For each kind of limit: what exceeds it, with its number."""


@dataclass
class Shape:
    """The measurements of a repository's source files."""

    code: Counter[str] = field(default_factory=Counter)
    """Lines of code by place, without blanks, comments and docstrings."""
    modules: Counter[str] = field(default_factory=Counter)
    """Modules by place, without `__init__.py`."""
    folders: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    functions: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)

    def excess(self) -> Excess:
        """What exceeds a limit."""
        return {
            "folders": {
                name: count
                for name, count in self.folders.items()
                if count > FOLDER_ENTRIES and Path(name).name not in FAMILIES
            },
            "names": {
                name: count for name, count in self.names.items() if count > NAME_USES and name not in SHARED_NAMES
            },
            "functions": {name: lines for name, lines in self.functions.items() if lines >= FUNCTION_LINES},
            "files": {name: lines for name, lines in self.files.items() if lines >= FILE_LINES},
        }


def measure(root: Path) -> Shape:
    """Read every source file of the repository."""
    shape = Shape()
    for place in PLACES:
        for path in sorted((root / place).rglob("*.py")):
            name, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            shape.code[place] += code_lines(text, tree)
            shape.files[name] = len(text.splitlines())
            shape.functions |= {f"{name}:{function}": lines for function, lines in functions(tree)}
            if path.name != "__init__.py":
                shape.modules[place] += 1
                if place == "src" and path.parent.name not in FAMILIES:
                    shape.names[path.name] += 1
    for folder in [root / "src", *(root / "src").rglob("*/")]:
        if any(folder.rglob("*.py")):
            shape.folders[str(folder.relative_to(root))] = sum(1 for entry in folder.iterdir() if is_entry(entry))
    return shape


def is_entry(entry: Path) -> bool:
    """Whether it counts in its folder: a module, or a folder with modules somewhere below it."""
    return any(entry.rglob("*.py")) if entry.is_dir() else entry.suffix == ".py" and entry.name != "__init__.py"


def code_lines(text: str, tree: ast.Module) -> int:
    """The number of lines with code: no blanks, comments, docstrings or sentences under a field."""
    said = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - said)


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, int]]:
    """The functions and methods with their lengths, as `Class.method`."""
    for node in ast.iter_child_nodes(tree):
        name = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{node.name}" if within else node.name
            if not isinstance(node, ast.ClassDef):
                yield name, (node.end_lineno or node.lineno) - node.lineno + 1
        yield from functions(node, name)


def problems(excess: Excess, exceptions: Excess) -> list[str]:
    """What exceeds a limit without an exception, and exceptions that are now too generous: they only shrink."""
    limits = {"folders": FOLDER_ENTRIES, "names": NAME_USES, "functions": FUNCTION_LINES - 1, "files": FILE_LINES - 1}
    found = []
    for kind, limit in limits.items():
        now, allowed = excess[kind], exceptions.get(kind, {})
        for name in sorted(now.keys() | allowed.keys()):
            count, most = now.get(name, 0), allowed.get(name, limit)
            if count > most:
                found.append(f"{kind}: {name} has {count}, may have {most}")
            elif name in allowed and count < most:
                change = f"write {count}" if count else "take it out"
                found.append(f"{kind}: {name} is better than its exception of {most} in pyproject.toml: {change}")
    return found


def report(shape: Shape) -> str:
    """All numbers, and the largest of each kind."""
    lines = [
        f"{place:<12}{shape.code[place]:>8} lines of code{shape.modules[place]:>6} modules" for place in shape.code
    ]
    largest = {
        "entries of a folder": shape.folders,
        "modules of one name": shape.names,
        "lines of a function": shape.functions,
        "lines of a file": shape.files,
    }
    for title, counts in largest.items():
        lines += ["", f"most {title}"]
        lines += [f"{count:>6}  {name}" for name, count in Counter(counts).most_common(12)]
    return "\n".join(lines)


def read_exceptions(root: Path) -> Excess:
    """What may exceed a limit today."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["posttrain"]["shape"]


def main() -> None:
    """Print the numbers, or what is wrong with them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="name what is over a limit, and end with exit code 1")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args()
    shape = measure(options.root)
    if not options.check:
        sys.stdout.write(report(shape) + "\n")
        return
    found = problems(shape.excess(), read_exceptions(options.root))
    for line in found:
        sys.stdout.write(line + "\n")
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
