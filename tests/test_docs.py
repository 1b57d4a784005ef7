"""Generated pages are up to date, and what pages refer to exists."""

import os
import re
import runpy
from pathlib import Path

import pytest
import yaml
from config_reference import undocumented_fields
from typer import Typer
from typer.testing import CliRunner

from posttrain.cli import rl_dataserver, sft
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.sft.config import SFTConfig

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Files of users or of other projects that pages mention.
NOT_OURS = {"graders.py", "grader.py", "objective.py", "file.py", "convert_hf_to_gguf.py"}


def test_the_written_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    for path, text in runpy.run_path(str(ROOT / "docs" / "render.py"))["rendered"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date: python docs/render.py"


@pytest.mark.parametrize(("command", "kind"), [(sft.main, "sft"), (rl_dataserver.main, "dataserver")])
def test_the_schema_is_what_the_command_prints(command: Typer, kind: str):
    result = CliRunner().invoke(command, ["--schema"])
    assert result.exit_code == 0
    schema = ROOT / "configs" / kind / "schema.json"
    assert result.stdout.rstrip() == schema.read_text(encoding="utf-8").rstrip()


def test_every_key_has_a_sentence():
    assert undocumented_fields(SFTConfig) == []
    # A grader's type is the heading of its section.
    assert [field for field in undocumented_fields(DataserverConfig) if not field.endswith(".type")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_are_there(page: Path):
    text = page.read_text(encoding="utf-8")
    files = set(re.findall(r"`([\w./-]+\.py)(?:::\w+)?`", text)) - NOT_OURS
    known = (ROOT, ROOT / "src" / "posttrain", ROOT / "tests", ROOT / "docs", page.parent)
    missing = [file for file in files if "NAME" not in file and not any((folder / file).is_file() for folder in known)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8"))
    for target, anchor in links:
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / ".ci" / "run"], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_make_targets_that_a_page_names_are_there(page: Path):
    named = set(re.findall(r"(?:^|`|CI=true )make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    rules = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert named <= {target for rule in rules for target in rule.split()}


def test_the_workflow_and_the_hooks_run_what_is_there():
    assert "run: .ci/run\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [each["repo"] for each in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        program, *arguments = hook["entry"].split()
        assert program in (".venv/bin/ruff", ".venv/bin/python")
        assert all((ROOT / word).is_file() for word in arguments if word.endswith(".py"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings: lower case, hyphens for spaces, no punctuation."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        anchor = re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-")
        number = sum(1 for each in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each))
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def test_how_to_add_something_is_said_in_fifteen_lines_and_a_decision_in_forty():
    for folder, most in (("how-to-add", 15), ("decisions", 40)):
        pages = sorted((ROOT / "docs" / folder).glob("*.md"))
        assert len(pages) >= 4
        assert [page.name for page in pages if len(page.read_text(encoding="utf-8").splitlines()) > most] == []


def test_every_package_has_its_row_in_the_architecture():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [cell for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for cell in re.findall(r"`(\w+)`", row)]
    package = (ROOT / "src" / "posttrain").glob("[!_]*")
    parts = {each.stem for each in package if each.is_dir() or each.suffix == ".py"}
    assert sorted(rows) == sorted(parts)
