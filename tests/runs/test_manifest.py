"""The manifest: what identifies a run, what it records, and changes since then."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from posttrain.config.sections.model import ModelConfig
from posttrain.data.ledger import Ledger
from posttrain.errors import ConfigError
from posttrain.runs.directory import RunDirectory, clear_run_directory
from posttrain.runs.manifest import commit, describe_run, require_same_run, source_digest, write_description
from posttrain.train.identity import require_same_weights


def test_the_same_run_may_go_on_after_its_manifest_was_read_from_disk():
    identity = {"training": {"seed": 0, "learning_rate": 1e-5}, "stages": ["one"]}
    require_same_run(json.loads(json.dumps(describe_run(identity, "toolkit-sft"))), identity)


def test_another_run_is_refused_with_every_difference_at_once():
    saved = describe_run({"training": {"seed": 0}, "datasets": {"a": "x"}}, "toolkit-sft")
    with pytest.raises(ConfigError) as caught:
        require_same_run(saved, {"training": {"seed": 1}, "datasets": {"a": "y"}})
    message = str(caught.value)
    assert "training.seed: 0 → 1" in message
    assert "datasets.a: x → y" in message
    assert message.endswith("undo the changes, or start a new run with --run-name")


def test_the_manifest_names_what_the_run_stands_on():
    import torch

    manifest = describe_run({"seed": 0}, "toolkit-sft")
    assert manifest["command"] == "toolkit-sft"
    assert manifest["identity"] == {"seed": 0}
    assert manifest["packages"]["torch"] == torch.__version__
    assert {"transformers", "trl", "peft", "tokenizers"} <= manifest["packages"].keys()
    assert manifest["cpus"] == os.cpu_count()


def test_nothing_from_the_environment_goes_into_the_files_of_a_run(tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MY_SETTING"):
        monkeypatch.setenv(name, f"canary-{name}")
    run = RunDirectory(tmp_path / "run")
    clear_run_directory(run)
    write_description(run, "toolkit-sft", ModelConfig(name="smollm2-135m-instruct"), {"seed": 0}, [Ledger("d")])
    written = "".join(path.read_text() for path in run.path.iterdir())
    assert "smollm2-135m-instruct" in written
    assert "canary" not in written


def test_a_resumed_run_keeps_its_start_and_adds_each_resume(tmp_path):
    run = RunDirectory(tmp_path / "run")
    clear_run_directory(run)
    config, identity = ModelConfig(name="smollm2-135m-instruct"), {"seed": 0}
    write_description(run, "toolkit-sft", config, identity, [Ledger("d", records=3)])
    first = json.loads(run.manifest.read_text())
    assert "resumed" not in first
    earlier = {**first, "started": "2020-01-01T00:00:00+00:00"}
    run.write_json(run.manifest, earlier)
    for times in (1, 2):
        write_description(run, "toolkit-sft", config, identity, [Ledger("d", records=3)])
        manifest = json.loads(run.manifest.read_text())
        assert manifest["started"] == "2020-01-01T00:00:00+00:00"
        assert [each["changed"] for each in manifest["resumed"]] == [[]] * times
    assert json.loads(run.ledger.read_text())[0]["records"] == 3
    assert sorted(path.name for path in run.path.iterdir()) == ["config.yaml", "ledger.json", "manifest.json"]


def test_a_resume_in_other_surroundings_says_so_and_writes_it_down(tmp_path, capsys):
    run = RunDirectory(tmp_path / "run")
    clear_run_directory(run)
    config, identity = ModelConfig(name="smollm2-135m-instruct"), {"seed": 0}
    write_description(run, "toolkit-sft", config, identity, [])
    first = json.loads(run.manifest.read_text())
    run.write_json(run.manifest, {**first, "packages": {**first["packages"], "torch": "1.0"}, "cpus": 999})
    assert capsys.readouterr().err == ""

    write_description(run, "toolkit-sft", config, identity, [])

    changes = [f"packages.torch: 1.0 → {first['packages']['torch']}", f"cpus: 999 → {os.cpu_count()}"]
    said = capsys.readouterr().err.splitlines()
    assert sorted(said) == sorted(f"  changed since the run was last started: {each}" for each in changes)
    manifest = json.loads(run.manifest.read_text())
    assert sorted(manifest["resumed"][0]["changed"]) == sorted(changes)
    assert manifest["packages"] == first["packages"]


def test_what_is_not_known_yet_is_not_compared_and_what_became_known_is(tmp_path):
    run = RunDirectory(tmp_path / "run")
    clear_run_directory(run)
    run.write_json(run.manifest, describe_run({"seed": 0, "weights of model.name": "a"}, "toolkit-dpo"))
    identity = {"seed": 0}
    require_same_run(json.loads(run.manifest.read_text()), identity)
    require_same_weights(run, identity, {"weights of model.name": "a"}, resume=True)
    assert identity == {"seed": 0, "weights of model.name": "a"}
    with pytest.raises(ConfigError, match=r"weights of model\.name: a → b"):
        require_same_weights(run, {"seed": 0}, {"weights of model.name": "b"}, resume=True)
    # A run that starts over is not compared.
    require_same_weights(run, {"seed": 0}, {"weights of model.name": "b"}, resume=False)


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
