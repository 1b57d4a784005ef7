"""The `toolkit-rl-regrade` command: what other graders would change, for completions in a file or a journal."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import contents

from dataserver.offline.offline_cases import (
    command,
    read_lines,
    table_rows,
    write_config,
    write_journal,
    write_lines,
)
from dataserver.serving import a_config, gold_of, serving, until
from posttrain.dataserver.journal.config import JournalConfig
from running import BIN

TEXTS = ("1 0", "0 1", "0.5 0.5", "1 abstain")
OTHER_WEIGHTS = ("--set", "datasets.sums.graders={one: 3, two: 1}", "--set", "datasets.sums.on_missing_score=zero")


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What toolkit-rl-grade writes for the four completions."""
    folder = tmp_path_factory.mktemp("graded")
    lines = [
        {"dataset": "sums", "line": n, "completion": text, "iteration": n} for n, text in enumerate(TEXTS, start=1)
    ]
    write_lines(folder / "c.jsonl", lines)
    command("toolkit-rl-grade", write_config(folder), folder / "c.jsonl", folder / "graded.jsonl")
    return (folder / "graded.jsonl").read_bytes()


@pytest.fixture
def folder(tmp_path: Path, graded: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with config.yaml and the four graded completions in graded.jsonl."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    (tmp_path / "graded.jsonl").write_bytes(graded)
    return tmp_path


def regrade(*arguments: str | Path, expect: int = 0) -> str:
    return command("toolkit-rl-regrade", "config.yaml", *arguments, expect=expect)


def keep(folder: Path, **journal: Any) -> None:
    """Add a journal to the config and write the graded completions to it."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "journal": journal}))
    write_journal(JournalConfig(**{"path": folder / "journal.sqlite", **journal}), read_lines(folder / "graded.jsonl"))


@pytest.mark.parametrize("place", ["file", "sqlite", "postgresql"])
def test_what_would_change_is_right_to_the_last_digit(place: str, folder: Path, request: pytest.FixtureRequest):
    if place == "postgresql":
        keep(folder, url=request.getfixturevalue("postgres").new_database())
    elif place == "sqlite":
        keep(folder)
    shown = regrade(*(["graded.jsonl"] if place == "file" else []), *OTHER_WEIGHTS)
    rows = table_rows(shown)
    # Rewards before: 0.5, 0.5, 0.5 and none. Now: 3/4, 1/4, 1/2 and 3/4, whose mean is 9/16.
    assert ["sums", "4", "3", "3", "4", "0.5000", "0.5625"] in rows
    # Scores of one: 1, 0, 0.5, 1; of two: 0, 1, 0.5 and none.
    assert ["sums", "one", "0.5", "0.75", "0.6250", "0.6250"] in rows
    assert ["two", "0.5", "0.25", "0.5000", "0.5000"] in rows
    at = "graded.jsonl:{}" if place == "file" else "journal row {}"
    ids = [line["sample_id"] for line in read_lines(folder / "graded.jsonl")]
    assert shown.endswith(
        "3 of 4 completions changed: 1 with a higher reward, 1 with a lower reward, 1 from abstain to ok\n"
        "the largest changes:\n"
        f"  {at.format(4)} ({ids[3]}): abstain → 0.7500\n"
        f"  {at.format(1)} ({ids[0]}): 0.5000 → 0.7500\n"
        f"  {at.format(2)} ({ids[1]}): 0.5000 → 0.2500\n"
        "why scores are missing now:\n"
        f"        1  abstain: two: told to abstain (first: {at.format(4)})\n"
    )


def test_with_the_same_graders_nothing_changes(folder: Path):
    keep(folder)
    assert "none of 4 completions changed\n" in regrade()


def test_each_completion_is_written_with_its_reward_before_and_now(folder: Path):
    assert regrade("graded.jsonl", *OTHER_WEIGHTS, "--output", "new.jsonl").endswith("\nwrote new.jsonl\n")
    lines = read_lines(folder / "new.jsonl")
    assert [(line["reward_before"], line["reward"]) for line in lines] == [
        (0.5, 0.75),
        (0.5, 0.25),
        (0.5, 0.5),
        (None, 0.75),
    ]
    assert lines[3]["status_before"] == "abstain"
    assert lines[3]["scores_before"] == {"one": 1.0, "two": None}
    assert (lines[3]["place"], lines[3]["completion"]) == ("graded.jsonl:4", "1 abstain")
    # The output can be regraded too; its rewards are then the ones before.
    assert ["sums", "4", "3", "4", "3", "0.5625", "0.5000"] in table_rows(regrade("new.jsonl"))


def test_only_what_was_chosen_is_graded(folder: Path):
    keep(folder)
    assert ["sums", "1", "0", "0", "0", "–", "–"] in table_rows(regrade("--status", "abstain", "--dataset", "sums"))
    assert "none of 2 completions changed" in regrade("--run", "run", "--from-iteration", "2", "--to-iteration", "3")


# What is wrong: the arguments, and the message.
NOTHING_CHOSEN = {
    "no such run": (
        ["--run", "walk"],
        "the journal contains no such completions; its runs are 'run' (4 completions)",
    ),
    "an end before the start": (
        ["--from-iteration", "3", "--to-iteration", "2"],
        "--from-iteration 3 is after --to-iteration 2",
    ),
    "a run of a file": (
        ["graded.jsonl", "--run", "run"],
        "--run: only a journal has runs, and graded.jsonl is not one; leave --run out",
    ),
    "a data set that is not in the file": (
        ["graded.jsonl", "--dataset", "words"],
        "graded.jsonl contains no such completions",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), NOTHING_CHOSEN.values(), ids=NOTHING_CHOSEN.keys())
def test_filters_that_choose_nothing_are_told(arguments: list[str], message: str, folder: Path):
    keep(folder)
    assert regrade(*arguments, expect=2) == f"error: {message}\n"


def test_rows_that_changed_are_taken_as_they_are_now_if_they_ask_the_same(folder: Path):
    rows = read_lines(folder / "sums.jsonl")
    rows[0]["answer"] = "a corrected answer"
    rows[1]["question"] = "something else?"
    write_lines(folder / "sums.jsonl", rows[:3])
    regraded = regrade("graded.jsonl", "--output", "new.jsonl")
    assert regraded.endswith(
        "graded by rows that have changed since, except for their prompt: 1 completion\n"
        "left out: 2 completions that cannot be graded again\n"
        "        1  its row in the data set sums now has a different prompt (first: graded.jsonl:2)\n"
        "        1  its row in the data set sums no longer exists (first: graded.jsonl:4)\n"
        "wrote new.jsonl\n"
    )
    assert [(line["place"], line["gold"]) for line in read_lines(folder / "new.jsonl")] == [
        ("graded.jsonl:1", "a corrected answer"),
        ("graded.jsonl:3", "sums-3"),
    ]


def test_completions_of_which_a_part_is_kept_are_counted_and_left_out(folder: Path):
    lines = read_lines(folder / "graded.jsonl")
    write_lines(folder / "graded.jsonl", [*lines[:2], {**lines[2], "completion": "0.5 0.5" + " more" * 100}])
    keep(folder, max_completion_chars=200)
    shown = regrade()
    assert "none of 2 completions changed\n" in shown
    assert shown.endswith(
        "left out: 1 completion that cannot be graded again\n"
        "        1  only part of the completion was stored; see journal.max_completion_chars (first: journal row 3)\n"
    )


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_where_nothing_can_be_graded_again_it_is_told_why(folder: Path, options: list[str]):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["datasets"]["renamed"] = config["datasets"].pop("sums")
    config["stages"] = [{"name": "all", "until_step": 1, "mix": {"renamed": 1, "words": 1}}]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert regrade("graded.jsonl", "--output", "new.jsonl", *options, expect=2).endswith(
        "error: nothing can be graded again:\n        4  the config has no data set 'sums' (first: graded.jsonl:1)\n"
    )
    assert not (folder / "new.jsonl").exists()


def test_a_dry_run_shows_how_the_rewards_would_be_made_and_grades_nothing(folder: Path):
    keep(folder)
    (folder / "told.py").write_text("import nothing_of_that_name")
    before = contents(folder)
    shown = regrade("--dry-run", "--output", "new.jsonl", *OTHER_WEIGHTS)
    assert ["sums", "early", "4", "0.75", "one", "+", "0.25", "two"] in table_rows(shown)
    assert shown.endswith("nothing was graded (--dry-run)\n")
    assert contents(folder) == before


def test_a_journal_that_is_not_there_is_told_and_not_made(folder: Path):
    before = contents(folder)
    assert regrade(expect=2) == (
        f"error: there is no journal {folder}/journal.sqlite; name one, or a .jsonl file that toolkit-rl-grade wrote\n"
    )
    assert regrade("old.sqlite", expect=2) == "error: no such file: old.sqlite\n"
    assert contents(folder) == before


def test_an_output_that_cannot_be_is_told_before_anything_is_graded(folder: Path):
    keep(folder)
    (folder / "told.py").write_text("import nothing_of_that_name")
    before = contents(folder)
    for source, output, reason in [
        ([], "graded.jsonl", "graded.jsonl already exists; choose another name, or replace it with --overwrite"),
        (["graded.jsonl"], "graded.jsonl", "graded.jsonl is an input; give the output another name"),
        ([], "journal.sqlite", "journal.sqlite is an input; give the output another name"),
        ([], "sums.jsonl", "sums.jsonl is an input; give the output another name"),
    ]:
        overwrite = ["--overwrite"] if "is an input" in reason else []
        assert regrade(*source, "--output", output, *overwrite, expect=2) == f"error: {reason}\n"
    assert contents(folder) == before


def test_a_journal_is_left_as_it_was_and_no_deep_learning_library_is_loaded(folder: Path):
    keep(folder)
    before = contents(folder)
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", BIN / "toolkit-rl-regrade", "config.yaml"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}
    assert {"posttrain", "sqlalchemy"} <= loaded
    assert not {"torch", "transformers", "datasets", "trl", "peft", "vllm"} & loaded
    assert contents(folder) == before


def test_the_journal_of_a_server_is_read_while_it_serves_and_after_it_was_killed(tmp_path: Path):
    config = a_config(tmp_path / "served")
    journal = tmp_path / "served/journal.sqlite"
    log = Path(f"{journal}-wal")
    with serving(config) as server:
        samples = server.sample(0).samples
        for number, answer in enumerate(("wrong", "right")):
            texts = [gold_of(sample) if answer == "right" else "no" for sample in samples]
            server.grade(
                [
                    {"item_id": str(slot), "sample_id": sample.sample_id, "completion": text, "slot": slot}
                    for slot, (sample, text) in enumerate(zip(samples, texts, strict=True))
                ],
                f"q{number}",
            )
            until(lambda wanted=8 * (number + 1): server.counter("journal_written") == wanted)
        kept = hashlib.sha256(log.read_bytes()).hexdigest()
        shown = command("toolkit-rl-regrade", config)
        assert "none of 16 completions changed" in shown
        # The server keeps serving, and its log is unchanged.
        assert hashlib.sha256(log.read_bytes()).hexdigest() == kept
        assert len(server.sample(1).samples) == 8
    # The killed server left its newest rows in the log.
    before = (journal.read_bytes(), log.read_bytes())
    assert "none of 16 completions changed" in command("toolkit-rl-regrade", config)
    assert (journal.read_bytes(), log.read_bytes()) == before
