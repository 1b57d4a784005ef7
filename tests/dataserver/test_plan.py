"""`--dry-run` shows what would be served and starts nothing."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.refusals import contents
from dataserver.dataserver_cases import questions, write_rows
from posttrain.cli.rl_dataserver import main
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.runtime import Loaded

CONFIG = """\
datasets:
  sums:
    path: sums.jsonl
    graders: {string_exact: 2, tidy: 1}
    gates: [short]
  words:
    path: words.jsonl
    validation_fraction: 0.2
    graders: {string_exact: 1, json_valid: 0}
graders:
  short: {type: completion_length_cap, max_tokens: 100}
  tidy: {type: regex, pattern: "[0-9]+"}
stages:
  - name: warm-up
    until_step: 2
    mix: {sums: 1}
  - name: "[/main]"
    until_step: 5
    mix: {sums: 1, words: 2}
    grading:
      sums: {gates: []}
on_bad_record: skip
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    write_rows(tmp_path / "sums.jsonl", [{"prompt": f"[/INST] sums {n}\n\n+ 1", "answer": "1"} for n in range(8)])
    write_rows(tmp_path / "words.jsonl", [*questions("words", 10), {"prompt": ""}, {}])
    return tmp_path


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["run.yaml", "--dry-run", *arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    return result.stderr


def cells(plan: str) -> list[list[str]]:
    """The rows of the tables: from the rule under each header to the next empty line."""
    tables = re.findall(r"^ *─+ *\n((?:.*\S.*\n)+)", plan, flags=re.MULTILINE)
    return [re.split(" {2,}", line.strip()) for table in tables for line in table.splitlines()]


def test_the_plan_tells_the_data_the_stages_and_the_rewards(folder: Path) -> None:
    plan = shown()
    # 10 usable rows, 2 of them held out; 2 iterations of 8 prompts, then 3 with one third of sums.
    assert cells(plan) == [
        ["sums", "8", "0", "0", "0", "sums.jsonl"],
        ["words", "8", "2", "2", "0", "words.jsonl"],
        ["warm-up", "0 to 1", "sums", "100.0%", "16", "(0.667 string_exact + 0.333 tidy) × short"],
        ["[/main]", "2 to 4", "sums", "33.3%", "8", "0.667 string_exact + 0.333 tidy"],
        ["[/main]", "2 to 4", "words", "66.7%", "16", "1 string_exact + 0 json_valid"],
    ]
    assert plan.endswith("\nnothing was started (--dry-run)\n")


def test_the_plan_shows_the_first_prompts_on_one_line_each(folder: Path) -> None:
    lines = shown().splitlines()
    first = lines[lines.index("the first prompts:") + 1 : -1]
    assert len(first) == 8
    for name, text in zip(first[::2], first[1::2], strict=True):
        _, line, _ = name.split(":")
        assert text == f"    user: [/INST] sums {int(line) - 1} + 1"


def test_the_plan_tells_the_identity(folder: Path) -> None:
    (told,) = {line for plan in (shown(), shown("--port", "0")) for line in plan.splitlines() if "config_id" in line}
    assert len(told.removeprefix("config_id ")) == 32
    assert told not in shown("--set", "seed=1")


def test_with_a_stride_fewer_prompts_are_drawn(folder: Path) -> None:
    table = cells(shown("--set", "iteration_stride=2"))
    # Iteration 0; then 2 and 4.
    assert [row[4] for row in table[2:]] == ["8", "5", "11"]


def test_a_long_prompt_is_cut(folder: Path) -> None:
    write_rows(folder / "sums.jsonl", [{"prompt": "x" * 1000, "answer": "1"}])
    (line,) = {line for line in shown().splitlines() if line.startswith("    user")}
    assert line == f"    user: {'x' * 300}..."


def test_the_samples_are_shown_that_the_server_would_send(folder: Path) -> None:
    ids = [line.strip() for line in shown().splitlines() if line.startswith("  sums:")]
    loaded = Loaded.read(load_config(folder / "run.yaml", DataserverConfig), lambda line: None)
    assert ids == [loaded.samples.sample(slot).sample_id for slot in loaded.sampler.slots(0, 0, 4, "train")]


# An audit hook records anything started and any file opened for writing; only cache files may be.
_WATCHED = """
import json, os, sys
events = []
WATCHED = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen", "socket.bind", "socket.connect",
           "sqlite3.connect")
def watch(event, arguments):
    if event in WATCHED:
        events.append(event)
    if event == "open" and isinstance(arguments[1], str) and set("wax+") & set(arguments[1]):
        events.append(f"{arguments[1]} {arguments[0]}")
sys.addaudithook(watch)
from posttrain.cli.rl_dataserver import main
import psutil
sys.argv = ["toolkit-rl-dataserver", "run.yaml", "--dry-run", "--set", f"listen.port={sys.argv[1]}"]
try:
    main()
except SystemExit as end:
    print(json.dumps([end.code, events, [child.name() for child in psutil.Process().children()]]))
"""


def test_a_dry_run_starts_nothing(folder: Path) -> None:
    before = contents(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        finished = subprocess.run(
            [sys.executable, "-c", _WATCHED, port], capture_output=True, text=True, check=True, cwd=folder
        )
    code, events, children = json.loads(finished.stdout)
    assert (code, children) == (0, []), finished.stderr
    assert [event for event in events if "/cache" not in event] == []
    # No journal or any other file was created.
    assert contents(folder) == before


def test_an_epoch_asks_each_prompt_once_and_is_told_in_iterations(folder: Path):
    written = (folder / "run.yaml").read_text()
    epochs = "stages:\n  - {name: all, epochs: 1}\n  - {name: more, epochs: 0.5, mix: {sums: 1}}\n"
    sizes = "prompts_per_iteration: 4\niteration_stride: 2\non_bad_record: skip\n"
    (folder / "run.yaml").write_text(written[: written.index("stages:")] + epochs + sizes)
    told: list[str] = []
    loaded = Loaded.read(load_config(folder / "run.yaml", DataserverConfig), told.append)
    # 8 rows of sums and 8 of words, without its 2 held-out ones, are 4 generations for two steps each; 4 of sums are 1.
    assert [stage.until_iteration for stage in loaded.meta.stages] == [8, 10] and loaded.meta.total_iterations == 10
    asked = [(slot.dataset, slot.index) for step in (0, 2, 4, 6) for slot in loaded.sampler.slots(step, 0, 4, "train")]
    rows = [(name, int(row)) for name, side in loaded.sides.items() for row in side.train]
    assert sorted(asked) == sorted(rows)
    assert told[-2:] == [
        "stage 'all': 1 epochs of 16 rows are steps 1 to 8",
        "stage 'more': 0.5 epochs of 8 rows are steps 9 to 10",
    ]


STRIDE = "prompts_per_iteration: 8\niteration_stride: 8\n"


@pytest.mark.parametrize(
    ("old", "new", "more", "told"),
    [
        ("until_step: 5", "until_step: 5\n    epochs: 1", "", "stages.1: give exactly one of `until_step`"),
        ("until_step: 5", "epochs: 1", "adaptive: {pools: {}}\n", "stages: with adaptive sampling .* give until_step"),
        # Known with the data: 8 rows of sums are one generation, and the stage after it ends before the next one.
        ("until_step: 2", "epochs: 1", STRIDE, "stage '.*main.*' has no iteration divisible by 8"),
    ],
    ids=range(3),
)
def test_epochs_that_make_no_sense_are_refused(folder: Path, old: str, new: str, more: str, told: str):
    written = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(written.replace(old, new) + more)
    result = CliRunner().invoke(main, ["run.yaml", "--dry-run"], env={"COLUMNS": "160"})
    assert result.exit_code == 2
    assert re.search(told, result.stderr)
