"""The same config and seed give the same run, even if folder, port, cache and hash seed differ."""

import os
from pathlib import Path

import pytest

from posttrain.inspect.diff import compare
from posttrain.inspect.folders import read_run
from rl.rl_runs import WriteRun, folder_of, require_same_runs, run


def test_the_same_command_twice_gives_the_same_numbers(
    left_alone: Path, a_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Each run has its own dataserver, on another port, with its data in another folder and an empty cache.
    again = a_run()
    for file in ("a.jsonl", "b.jsonl"):
        os.utime(again.with_name(file), (2e9, 2e9))
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    run(again, forked=False)  # as the hash seed is read when Python starts

    require_same_runs(again, left_alone)
    comparison = compare(read_run(folder_of(left_alone)), read_run(folder_of(again)))
    # Only the path differs; the dataserver's identity is what it serves.
    assert [each.key for each in comparison.differences] == ["dataserver.config"]
    assert all(one == other for one, other in comparison.final.values())
