"""checks/shape.py on a small tree: what it counts and what it rejects."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "checks" / "shape.py"


def shape(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, "--root", root, *options], capture_output=True, text=True)


def problems(root: Path) -> list[str]:
    """The lines that --check prints; also checks that the exit code fits them."""
    finished = shape(root, "--check")
    assert finished.stderr == ""
    assert finished.returncode == (1 if finished.stdout else 0)
    return finished.stdout.splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of one module with four lines of code, a test with two, and no exceptions."""
    write(tmp_path / "src" / "house" / "__init__.py", "")
    code = '"""What it does."""\n\nimport os  # a comment\n\n\ndef f():\n    """One line,\n\n    and more."""\n'
    write(tmp_path / "src" / "house" / "name.py", code + '    return """a\n    string"""\n\n# the end\n')
    write(tmp_path / "tests" / "test_name.py", "import house\nassert house\n")
    allow(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def allow(root: Path, kind: str = "files", **exceptions: int) -> None:
    lines = "".join(f'"{name}" = {count}\n' for name, count in exceptions.items())
    write(root / "pyproject.toml", f"[tool.posttrain.shape.{kind}]\n{lines}")


def test_blanks_comments_and_docstrings_are_not_counted_and_strings_over_lines_are(tree: Path):
    counted = [line.split() for line in shape(tree).stdout.splitlines()[:2]]
    # The import, the def and a string of two lines.
    assert counted[0][:2] == ["src", "4"] and counted[0][-2:] == ["1", "modules"]
    assert counted[1][:2] == ["tests", "2"] and counted[1][-2:] == ["1", "modules"]
    assert problems(tree) == []


def test_a_function_has_less_than_60_lines(tree: Path):
    body = "    pass\n" * 58
    write(tree / "tests" / "test_long.py", f"class A:\n  async def most(self):\n{body}")
    assert problems(tree) == []  # 59 lines including the def
    write(tree / "tests" / "test_long.py", f"class A:\n  async def most(self):\n{body}    pass\n")
    assert problems(tree) == ["functions: tests/test_long.py:A.most has 60, may have 59"]


def test_a_file_has_less_than_350_lines(tree: Path):
    write(tree / "src" / "house" / "long.py", "\n" * 349)
    assert problems(tree) == []
    write(tree / "src" / "house" / "long.py", "\n" * 350)
    assert problems(tree) == ["files: src/house/long.py has 350, may have 349"]


def test_a_folder_has_15_entries_unless_it_is_a_family(tree: Path):
    for folder in ("rooms", "graders"):
        for number in range(14):
            write(tree / "src" / "house" / folder / f"{folder}_{number}.py", "")
        write(tree / "src" / "house" / folder / "__init__.py", "")
        write(tree / "src" / "house" / folder / "text" / "deep" / f"{folder}.py", "")
        (tree / "src" / "house" / folder / "__pycache__").mkdir()
    assert problems(tree) == []  # 14 modules and a folder
    write(tree / "src" / "house" / "rooms" / "one_more.py", "")
    write(tree / "src" / "house" / "graders" / "one_more.py", "")
    assert problems(tree) == ["folders: src/house/rooms has 16, may have 15"]


def test_a_name_is_used_three_times_unless_it_means_the_same_everywhere(tree: Path):
    for folder in ("a", "b", "c"):
        write(tree / "src" / "house" / folder / "rows.py", "")
    write(tree / "src" / "house" / "cli" / "rows.py", "")  # a command is named by its users
    assert problems(tree) == []
    for folder in ("a", "b", "c", "d"):
        for name in ("rows.py", "plan.py", "__init__.py"):
            write(tree / "src" / "house" / folder / name, "")
    assert problems(tree) == ["names: rows.py has 4, may have 3"]


def test_an_exception_is_its_number_of_today_and_only_shrinks(tree: Path):
    allow(tree, **{"src/house/long.py": 400})
    for lines, wanted in ((400, []), (401, ["has 401, may have 400"]), (399, ["write 399"]), (2, ["take it out"])):
        write(tree / "src" / "house" / "long.py", "\n" * lines)
        found = problems(tree)
        assert len(found) == len(wanted) and all(words in line for words, line in zip(wanted, found, strict=True))
