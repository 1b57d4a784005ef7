"""When two commands would write the same output at the same time, one does and the other is refused."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dataserver.offline.offline_cases import read_lines, write_config, write_lines
from merge.merge_cases import Case, json_of, make_base, make_case, weights, write_run
from posttrain.base.locks import Holder, lock_of, own_output, require_unowned
from posttrain.errors import ConfigError
from posttrain.merge.merge import merge
from running import BIN

HOLD = """
import sys
from pathlib import Path
from posttrain.base.locks import own_output
with own_output(Path(sys.argv[1])):
    print("has it", flush=True)
    sys.stdin.read()
"""


@contextmanager
def written_by_another(output: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of an output; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(output)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "has it\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_an_output_belongs_to_one_process_until_that_ends_however_it_ends(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with written_by_another(output) as process:
        for attempt in (own_output(output).__enter__, lambda: require_unowned(output)):
            with pytest.raises(
                ConfigError, match=rf"^{output} is being written by process {process.pid} on .*, since "
            ):
                attempt()
        process.kill()
        process.wait()
        assert lock_of(output).is_file()
        require_unowned(output)
        with own_output(output):
            pass
    assert list(tmp_path.iterdir()) == []


def test_one_output_by_several_names_has_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("out", "./out", "out/", "in/../out", str(tmp_path / "out"))
    assert {lock_of(Path(name)) for name in names} == {tmp_path / ".out.lock"}
    assert lock_of(Path(".")) == tmp_path.parent / f".{tmp_path.name}.lock"


def test_without_locks_the_file_to_remove_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(7, "elsewhere", "2026-01-02T03:04:05+00:00", is_certain=False)
    monkeypatch.setattr("posttrain.base.locks.holder_of", lambda path: holder)
    with pytest.raises(ConfigError, match=rf"by process 7 on elsewhere.*; if that process is gone, remove {tmp_path}/"):
        require_unowned(tmp_path / "out")


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return make_case(make_base(tmp_path / "base", chatml=False), tmp_path / "adapter")


@pytest.fixture
def config(case: Case, tmp_path: Path) -> Path:
    """The config of a finished run."""
    return write_run(case, tmp_path)


def test_a_folder_that_is_being_merged_into_is_refused_whatever_was_asked_for(config: Path, tmp_path: Path) -> None:
    target = tmp_path / "runs" / "task" / "merged"
    with written_by_another(target) as process:
        for options in ({}, {"overwrite": True}, {"dry_run": True}):
            with pytest.raises(ConfigError, match=rf"^{target} is being written by process {process.pid} on "):
                merge(config, **options)
        assert not target.exists()
        merge(config, output=tmp_path / "elsewhere", verify=False)
    merge(config, verify=False)
    assert sorted(weights(target)) == sorted(weights(tmp_path / "elsewhere"))
    assert not lock_of(target).exists()


@pytest.mark.long
def test_of_two_merges_that_are_started_together_one_writes_the_folder(config: Path, tmp_path: Path) -> None:
    command = [BIN / "toolkit-merge", config]
    merges = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        for _ in range(2)
    ]
    said = [process.communicate(timeout=200)[1] for process in merges]
    codes = [process.returncode for process in merges]
    assert sorted(codes) == [0, 2], said
    refused = said[codes.index(2)]
    # It came either while the other was writing or after.
    assert "merged is being written by process " in refused or "merged is not empty; replace it with" in refused
    target = tmp_path / "runs" / "task" / "merged"
    assert json_of(target / "config.json")["vocab_size"] > 0
    assert [path.name for path in target.parent.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    """`graded(completions)` starts grading a file into `out.jsonl` in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)

    def start(completions: str, *options: str) -> subprocess.Popen[str]:
        words = [BIN / "toolkit-rl-grade", "config.yaml", completions, "out.jsonl", *options]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    return start


def test_a_file_that_is_being_graded_into_is_refused_and_a_killed_command_keeps_nobody_out(
    graded: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    write_lines(
        tmp_path / "slow.jsonl", [{"prompt": f"sums {n % 5 + 1}?", "completion": f"sleep {n}"} for n in range(99)]
    )
    write_lines(tmp_path / "quick.jsonl", [{"prompt": "sums 1?", "completion": "1 0.5"}])
    first = graded("slow.jsonl")
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "asleep").exists():
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        for options in ([], ["--overwrite"], ["--dry-run"]):
            second = graded("quick.jsonl", *options)
            _, told = second.communicate(timeout=60)
            assert second.returncode == 2
            assert told.splitlines()[-1].startswith(f"error: out.jsonl is being written by process {first.pid} on ")
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert not (tmp_path / "out.jsonl").exists()
    third = graded("quick.jsonl")
    _, told = third.communicate(timeout=60)
    assert third.returncode == 0, told
    assert [line["reward"] for line in read_lines(tmp_path / "out.jsonl")] == [0.75]
    assert not lock_of(tmp_path / "out.jsonl").exists()
