"""The `toolkit-rl-grade` command: what it shows and writes, and what it refuses before grading."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from refusals import contents

from dataserver.offline.offline_cases import command, read_lines, table_rows, write_config, write_lines
from running import BIN


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config file, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return write_config(tmp_path)


def completions(folder: Path, *texts: str, dataset: str = "sums", **more: Any) -> Path:
    """A file of completions for consecutive rows of a data set."""
    lines = [{"prompt": f"{dataset} {n % 5 + 1}?", "completion": text, **more} for n, text in enumerate(texts)]
    return write_lines(folder / "c.jsonl", lines)


def grade(*arguments: str | Path, expect: int = 0) -> str:
    return command("toolkit-rl-grade", "config.yaml", "c.jsonl", *arguments, expect=expect)


def test_completions_are_graded_and_counted(config: Path, tmp_path: Path):
    completions(tmp_path, "1 0.5", "0 0.5", "1 1", "abstain 1", "raise 1", "exit 1", "abstain 0")
    shown = grade("out.jsonl")
    rows = table_rows(shown)
    # Rewards 0.75, 0.25 and 1; one scores 1, 0, 1; two scores 0.5, 0.5, 1, 1, 1, 0.
    assert ["sums", "early", "7", "3", "2", "2", "0.6667"] in rows
    assert ["sums", "early", "one", "0.5", "4", "0.6667"] in rows
    assert ["early", "two", "0.5", "1", "0.6667"] in rows
    assert shown.endswith(
        "4 of 7 completions have no reward\n"
        "why scores are missing:\n"
        "        2  abstain: one: told to abstain (first: c.jsonl:4)\n"
        "        1  error: one: ValueError: told to raise (first: c.jsonl:5)\n"
        "        1  error: one: the grading process died (exit code 3) (first: c.jsonl:6)\n"
        "        1  error: two: the grading process died (exit code 3) (first: c.jsonl:6)\n"
        "wrote out.jsonl\n"
    )
    assert max(map(len, shown.partition("4 of 7")[0].splitlines()[2:])) <= 80
    lines = read_lines(tmp_path / "out.jsonl")
    assert [(line["input_line"], line["status"], line["reward"]) for line in lines] == [
        (1, "ok", 0.75),
        (2, "ok", 0.25),
        (3, "ok", 1.0),
        (4, "abstain", None),
        (5, "error", None),
        (6, "error", None),
        (7, "abstain", None),
    ]
    assert lines[1]["sample_id"].startswith("sums:2:")
    assert lines[1]["completion"] == "0 0.5"


def test_without_an_output_each_of_the_first_completions_is_shown(config: Path, tmp_path: Path):
    completions(tmp_path, "1 0.5", "abstain 1", *["1 1"] * 20)
    before = set(tmp_path.iterdir())
    lines = grade().splitlines()
    start = lines.index("  c.jsonl:1: 0.7500 (one 1.0000, as told; two 0.5000, as told)")
    assert lines[start + 1] == "  c.jsonl:2: abstain (one abstain, told to abstain; two 1.0000, as told)"
    assert lines[start + 20] == "  ... and 2 more; name an output file to get all"
    assert set(tmp_path.iterdir()) == before


def test_what_was_graded_can_be_graded_again_as_it_is(config: Path, tmp_path: Path):
    completions(tmp_path, "1 0.5", "0 0.5", iteration=12)
    grade("first.jsonl")
    command("toolkit-rl-grade", "config.yaml", "first.jsonl", "second.jsonl")
    kept = ("sample_id", "iteration", "stage", "reward", "completion")
    first, second = (
        [[line[key] for key in kept] for line in read_lines(tmp_path / name)]
        for name in ("first.jsonl", "second.jsonl")
    )
    assert first == second


def test_the_iteration_decides_the_stage(config: Path, tmp_path: Path):
    row = {"dataset": "sums", "line": 1, "completion": "1 0.5"}
    write_lines(tmp_path / "c.jsonl", [row, {**row, "iteration": 0}])
    rows = table_rows(grade("--iteration", "15"))
    assert ["sums", "late", "1", "1", "0", "0", "0.4375"] in rows
    assert ["early", "1", "1", "0", "0", "0.7500"] in rows
    assert ["late", "two", "0.25", "0", "0.5000"] in rows


def test_a_dry_run_shows_how_the_rewards_are_made_and_grades_nothing(config: Path, tmp_path: Path):
    (tmp_path / "told.py").write_text("import nothing_of_that_name")
    completions(tmp_path, "1", "1", dataset="words", iteration=12)
    with (tmp_path / "c.jsonl").open("a") as file:
        file.write(json.dumps({"dataset": "sums", "line": 1, "completion": "1 1", "iteration": 12}))
    before = contents(tmp_path)
    shown = grade("out.jsonl", "--dry-run")
    rows = table_rows(shown)
    assert ["words", "late", "2", "1", "one"] in rows
    assert ["sums", "late", "1", "(0.75", "one", "+", "0.25", "two)", "×", "two"] in rows
    assert shown.endswith("nothing was graded (--dry-run)\n")
    assert contents(tmp_path) == before


def test_lines_that_cannot_be_graded_are_all_told_and_nothing_is_written(config: Path, tmp_path: Path):
    completions(tmp_path, "1 1", "1 1")
    with (tmp_path / "c.jsonl").open("a") as file:
        file.write('{"prompt": "sums 77?", "completion": "1 1"}\nnot JSON\n')
    before = contents(tmp_path)
    message = grade("out.jsonl", expect=2)
    assert message.partition("error: ")[2].splitlines()[:3] == [
        "c.jsonl: 2 lines cannot be graded:",
        "  c.jsonl:3: no data set has the prompt 'sums 77?'",
        "  c.jsonl:4: not JSON at column 1: Expecting value",
    ]
    assert contents(tmp_path) == before

    shown = grade("out.jsonl", "--set", "on_bad_record=skip")
    assert (
        "left out: 2 lines that cannot be graded, the first: c.jsonl:3: no data set has the prompt 'sums 77?'\n"
        in shown
    )
    assert len(read_lines(tmp_path / "out.jsonl")) == 2


# What is wrong: the arguments after the completions, and the message.
REFUSED = {
    "an output that is there": (
        ["old.jsonl"],
        "old.jsonl already exists; choose another name, or replace it with --overwrite",
    ),
    "the completions themselves": (["./c.jsonl", "--overwrite"], "c.jsonl is an input; give the output another name"),
    "a data set": (["sums.jsonl", "--overwrite"], "sums.jsonl is an input; give the output another name"),
    "a folder": (["."], ". is a folder; the output must be a file, e.g. rows.jsonl"),
    "below a file": (["old.jsonl/x"], "old.jsonl/x cannot be written: {here}/old.jsonl is a file, not a folder"),
    "where no file can be": (["/proc/out.jsonl"], "/proc/out.jsonl cannot be written: "),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_an_output_that_cannot_be_is_told_before_anything_is_graded(
    arguments: list[str], message: str, config: Path, tmp_path: Path
):
    # Loading the graders would fail with another message.
    (tmp_path / "told.py").write_text("import nothing_of_that_name")
    completions(tmp_path, "1 1")
    (tmp_path / "old.jsonl").write_text("precious\n")
    before = contents(tmp_path)
    assert f"error: {message.format(here=tmp_path)}" in grade(*arguments, expect=2)
    assert contents(tmp_path) == before


def test_an_output_is_replaced_when_told_so_and_stays_if_grading_fails(config: Path, tmp_path: Path):
    completions(tmp_path, "1 1")
    (tmp_path / "old.jsonl").write_text("precious\n")
    grader = (tmp_path / "told.py").read_text()
    (tmp_path / "told.py").write_text("import nothing_of_that_name")
    assert "error: graders.one: " in grade("old.jsonl", "--overwrite", expect=2)
    assert (tmp_path / "old.jsonl").read_text() == "precious\n"
    (tmp_path / "told.py").write_text(grader)
    grade("old.jsonl", "--overwrite")
    assert [line["reward"] for line in read_lines(tmp_path / "old.jsonl")] == [1.0]


def test_completions_that_are_not_there_are_told_before_the_data_are_read(config: Path, tmp_path: Path):
    (tmp_path / "sums.jsonl").unlink()
    assert grade(expect=2) == "error: no such file: c.jsonl\n"
    (tmp_path / "c.jsonl").mkdir()
    assert grade(expect=2) == "error: c.jsonl is a folder; name a file in it\n"


def test_ctrl_c_ends_it_at_once_with_all_its_processes_and_leaves_nothing(config: Path, tmp_path: Path):
    completions(tmp_path, *(f"sleep {number}" for number in range(200)))
    before = set(tmp_path.iterdir())
    process = subprocess.Popen(
        [BIN / "toolkit-rl-grade", "config.yaml", "c.jsonl", "out.jsonl"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "asleep").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        family = psutil.Process(process.pid).children(recursive=True)
        # A terminal sends SIGINT to the whole process group.
        os.killpg(process.pid, signal.SIGINT)
        _, shown = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert shown.splitlines()[-1] == "interrupted"
    assert "Traceback" not in shown and "WARNING" not in shown
    assert set(tmp_path.iterdir()) == before | {tmp_path / "asleep"}
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_no_deep_learning_library_is_loaded(config: Path, tmp_path: Path):
    completions(tmp_path, "1 1")
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", BIN / "toolkit-rl-grade", "config.yaml", "c.jsonl"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}
    assert {"posttrain", "pebble"} <= loaded
    assert not {"torch", "transformers", "datasets", "trl", "peft", "vllm"} & loaded
