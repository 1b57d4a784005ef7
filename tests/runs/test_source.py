"""Which code a run was made by."""

import subprocess
from pathlib import Path

from posttrain.runs.source import commit, source_digest


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_what_git_says_however_it_is_kept(tmp_path: Path):
    assert commit(tmp_path) is None
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init")
    assert commit(root) is None  # nothing is committed yet
    git(root, "commit", "--allow-empty", "--message", "one")
    head = git(root, "rev-parse", "HEAD")
    assert commit(root) == head
    git(root, "pack-refs", "--all")
    assert not (root / ".git" / "refs" / "heads" / "main").exists()
    assert commit(root) == head
    git(root, "worktree", "add", "-b", "other", str(tmp_path / "further"))
    git(tmp_path / "further", "commit", "--allow-empty", "--message", "two")
    assert commit(tmp_path / "further") == git(tmp_path / "further", "rev-parse", "HEAD") != head
    git(root, "checkout", "--detach")
    assert commit(root) == head


def test_a_repository_that_only_holds_the_installed_package_is_not_its_own(tmp_path: Path):
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "--message", "of a user")
    assert commit(tmp_path / "lib" / "python3.11") is None


def test_the_digest_changes_with_a_files_name_and_content_alone(tmp_path: Path):
    def package(name: str, files: dict[str, str]) -> Path:
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
        return tmp_path / name

    code = {"a.py": "1", "b/c.py": "2"}
    one = source_digest(package("one", code))
    assert source_digest(package("same", {**code, "__pycache__/a.pyc": "compiled"})) == one
    others = [{"a.py": "1", "b/c.py": "3"}, {"a.py": "1", "b/d.py": "2"}, {**code, "e.py": ""}]
    digests = {source_digest(package(f"other{number}", files)) for number, files in enumerate(others)}
    assert len({one, *digests}) == 4
