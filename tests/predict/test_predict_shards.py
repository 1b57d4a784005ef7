"""Several machines answer a shard of the rows each: joined, their answers are those of one, and nothing else is."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from predict_cases import QUESTIONS, Task
from test_predict_resume import prompts, stop_after

from posttrain.inference.answering.shards import Shard

SAMPLED = {"temperature": 1.0, "n": 3, "max_new_tokens": 12, "logprobs": True}
BASE = ("--weights", "base")


def shard_file(task: Task, number: int, count: int) -> Path:
    return Shard(number, count).file_of(task.output)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def sampled(task: Task, run: Callable) -> bytes:
    """What one process writes for `in.jsonl`: 3 answers each to 23 prompts, 4 at once."""
    task.change("generation", **SAMPLED)
    task.ask(prompts(23))
    run(task.config, task.folder / "in.jsonl", task.folder / "whole.jsonl", *BASE)
    whole = task.folder / "whole.jsonl"
    content = whole.read_bytes()
    whole.unlink()
    return content


@pytest.fixture
def command(task: Task, run: Callable) -> Callable:
    """`command(*arguments)` answers `in.jsonl`."""
    return lambda *arguments, **options: run(
        task.config, task.folder / "in.jsonl", task.output, *BASE, *arguments, **options
    )


@pytest.fixture
def shards(sampled: bytes, command: Callable) -> bytes:
    """What one process writes; three shards have been answered."""
    for number in (1, 2, 3):
        command("--shard", f"{number}/3")
    return sampled


@pytest.mark.parametrize("count", [2, 5])
def test_the_joined_output_is_that_of_one_process_bit_for_bit(
    task: Task, sampled: bytes, command: Callable, count: int
):
    for number in reversed(range(1, count + 1)):
        told = command("--shard", f"{number}/{count}").stderr
        assert f"shard     {number}/{count}: " in told and not task.output.exists()
        lines = [json.loads(line) for line in shard_file(task, number, count).read_text().splitlines()]
        assert all(json.dumps(line) for line in lines)
    assert f"joined 69 answers of {count} shards\nwrote {task.output}" in command("--join").stderr
    assert task.output.read_bytes() == sampled
    assert names(task.folder) == ["in.jsonl", "out.jsonl", "task.yaml"]


def test_the_files_of_a_folder_are_answered_in_shards_too(task: Task, run: Callable):
    task.change("generation", **SAMPLED)
    task.ask(QUESTIONS[:3], "in/a.jsonl")
    task.ask(QUESTIONS[3:], "in/b.jsonl")
    input_, output = task.folder / "in", task.folder / "out"
    run(task.config, input_, task.folder / "whole", *BASE)
    for number in (1, 2):
        run(task.config, input_, output, *BASE, "--shard", f"{number}/2")
    run(task.config, input_, output, *BASE, "--join")
    whole = {path.name: path.read_bytes() for path in (task.folder / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in output.iterdir()} == whole
    assert names(task.folder) == ["in", "out", "task.yaml", "whole"]


def test_shards_that_are_killed_go_on_and_each_row_is_answered_once(task: Task, run: Callable, command: Callable):
    task.change("generation", **{**SAMPLED, "max_new_tokens": 60})
    input_ = task.ask(prompts(40))
    run(task.config, input_, task.folder / "whole.jsonl", *BASE)
    first = shard_file(task, 1, 2)
    killed = stop_after(17, signal.SIGKILL, task, input_, task.output, "--shard", "1/2", partial=first)
    command("--shard", "2/2")  # meanwhile, on another machine
    assert killed.wait() == -signal.SIGKILL
    before = first.read_bytes()
    there = before.count(b"\n") - 1
    assert f"out.jsonl.shard-1-of-2 has {there} of 60 answers" in command("--join", expect=2).stderr
    assert first.read_bytes() == before
    command("--shard", "1/2")
    assert first.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    command("--join")
    assert task.output.read_bytes() == (task.folder / "whole.jsonl").read_bytes()
    assert len(task.answers()) == 120


def test_shards_of_machines_with_weights_in_other_places_are_joined_by_their_copied_files(
    task: Task, sampled: bytes, command: Callable, run: Callable, sharp_model: Path
):
    command("--shard", "1/2")
    away = task.folder / "away"
    (away / "weights").mkdir(parents=True)
    for file in sharp_model.iterdir():  # without their times
        shutil.copyfile(file, away / "weights" / file.name)
    config = yaml.safe_load(task.config.read_text())
    config["model"]["name"] = "./weights"
    (away / "other.yaml").write_text(yaml.safe_dump(config))
    shutil.copyfile(task.folder / "in.jsonl", away / "in.jsonl")
    run(away / "other.yaml", away / "in.jsonl", away / "out.jsonl", *BASE, "--shard", "2/2")
    shutil.copy(away / "out.jsonl.shard-2-of-2", task.folder)
    command("--join")
    assert task.output.read_bytes() == sampled


def test_a_shard_with_nothing_left_to_answer_says_so(task: Task, command: Callable):
    task.ask(QUESTIONS[:4])  # one batch of four
    assert "4 answers: " in command("--shard", "1/2").stderr
    assert f"1 per row, 4 of them already in {shard_file(task, 1, 2)}" in command("--shard", "1/2").stderr
    assert "\n0 answers\n" in command("--shard", "2/2").stderr
    command("--join")
    assert len(task.answers()) == 4


def damaged(task: Task, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of the second shard's file."""
    path = shard_file(task, 2, 3)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def test_shards_that_are_not_all_there_are_refused_all_at_once(task: Task, shards: bytes, command: Callable):
    shard_file(task, 1, 3).unlink()
    damaged(task, lambda lines: lines[:-3])
    before = {name: (task.folder / name).read_bytes() for name in names(task.folder)}
    for option in ([], ["--dry-run"], ["--overwrite"]):
        assert command("--join", *option, expect=2).stderr.split("error: ")[1] == (
            f"the shards of {task.output} cannot be joined:\n"
            "  out.jsonl.shard-1-of-3 is not there\n"
            "  out.jsonl.shard-2-of-3 has 21 of 24 answers\n"
            "  answer them with --shard, or copy their files here\n"
        )
    assert {name: (task.folder / name).read_bytes() for name in names(task.folder)} == before
    command("--shard", "1/3")
    command("--shard", "2/3")
    command("--join")
    assert task.output.read_bytes() == shards


def test_a_shard_of_other_settings_weights_or_rows_is_refused(
    task: Task, shards: bytes, command: Callable, adapters: list[Path]
):
    second = shard_file(task, 2, 3)
    kept = second.read_bytes()
    for option, told in [
        ("generation.temperature=0.9", "generation.temperature: 0.9 → 1.0"),
        ("generation.seed=1", "generation.seed: 1 → 0"),
        ("chat.default_system=Hi", "prompts: "),
        ("model.dtype=bfloat16", "computed: bfloat16 on cpu → float32 on cpu"),
        (f"model.adapter={adapters[0]}", "weights: "),
    ]:
        command("--shard", "2/3", "--set", option, "--overwrite")
        message = command("--join", expect=2).stderr
        assert "out.jsonl.shard-2-of-3 is of another job: " in message and told in message
        assert len(message.splitlines()) == 3
    shutil.copy(shard_file(task, 1, 3), second)  # one shard under two names
    assert "shard-2-of-3 is of another job: shard: 1/3 → 2/3" in command("--join", expect=2).stderr
    second.write_bytes(kept)
    damaged(task, lambda lines: [*lines, shard_file(task, 1, 3).read_bytes().splitlines(keepends=True)[1]])
    assert "shard-2-of-3 has 1 answers that are not its own" in command("--join", expect=2).stderr
    second.write_bytes(kept)
    command("--join")
    assert task.output.read_bytes() == shards


def test_other_rows_are_another_job(task: Task, shards: bytes, command: Callable):
    with (task.folder / "in.jsonl").open("a") as file:
        file.write('{"prompt": "one more"}\n')
    message = command("--join", expect=2).stderr
    assert message.count("is of another job: inputs.in.jsonl: ") == 3


def test_an_existing_output_is_replaced_only_if_told(task: Task, shards: bytes, command: Callable):
    task.output.write_text("precious\n")
    for part in (["--join"], ["--shard", "1/3", "--set", "generation.seed=1"]):
        assert "out.jsonl already exists" in command(*part, expect=2).stderr
    assert task.output.read_text() == "precious\n"
    command("--join", "--overwrite")
    assert task.output.read_bytes() == shards


def test_shards_of_two_divisions_are_not_mixed(task: Task, shards: bytes, command: Callable):
    command("--shard", "1/2")
    assert "some of 2 and some of 3; move those away" in command("--join", expect=2).stderr
    shard_file(task, 1, 2).unlink()
    command("--join")
    assert task.output.read_bytes() == shards


def test_what_makes_no_sense_is_refused(task: Task, command: Callable):
    task.ask()
    assert "there are no shards to join, such as out.jsonl.shard-1-of-2" in command("--join", expect=2).stderr
    assert "give one of the two" in command("--shard", "1/2", "--join", expect=2).stderr
    assert "--shard 3/2: give its number" in command("--shard", "3/2", expect=2).stderr
    assert names(task.folder) == ["in.jsonl", "task.yaml"]


def test_a_dry_run_says_what_a_shard_would_answer_and_writes_nothing(task: Task, command: Callable):
    task.ask(prompts(23))
    told = command("--shard", "2/3", "--dry-run").stderr
    assert "rows      23 in" in told and "shard     2/3: 8 rows" in told and "shard-2-of-3" in told
    assert names(task.folder) == ["in.jsonl", "task.yaml"]
