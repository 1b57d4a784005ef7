"""A killed run resumes: no answer is lost or repeated, and the output is that of an uninterrupted run."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from predict_cases import QUESTIONS, Task

from running import BIN

SAMPLED = {"temperature": 1.0, "n": 3, "max_new_tokens": 12, "logprobs": True}
BASE = ("--weights", "base")


def prompts(count: int) -> list[dict[str, str]]:
    """Prompts of 1 to 7 words, some of them the same."""
    words = random.Random(0)
    return [{"prompt": " ".join(words.choices(["one", "two", "apples"], k=row % 7 + 1))} for row in range(count)]


def stop_after(
    answers: int, stop: signal.Signals, task: Task, *arguments: str | Path, partial: Path | None = None
) -> subprocess.Popen[str]:
    """Start toolkit-predict in a process and send it the signal `stop` once `answers` answers are on disk."""
    partial = partial or task.partial
    process = subprocess.Popen(
        [BIN / "toolkit-predict", task.config, *arguments, *BASE],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        while process.poll() is None:
            if partial.is_file() and partial.read_bytes().count(b"\n") > answers:
                break
            time.sleep(0.002)
        assert process.poll() is None, "the run ended before it could be stopped"
        process.send_signal(stop)
    except BaseException:
        process.kill()
        raise
    return process


def test_a_run_that_is_killed_and_interrupted_writes_the_same_bytes(task: Task, run: Callable):
    task.change("generation", **{**SAMPLED, "max_new_tokens": 60})
    input_ = task.ask(prompts(40))
    run(task.config, input_, task.folder / "whole.jsonl", *BASE)

    assert stop_after(17, signal.SIGKILL, task, input_, task.output).wait() == -signal.SIGKILL
    first = task.partial.read_bytes()
    assert not task.output.exists()

    interrupted = stop_after(50, signal.SIGINT, task, input_, task.output)
    _, told = interrupted.communicate()
    assert interrupted.returncode == 130, told
    assert f"of 120 answers are kept in {task.partial}; run the same command again to continue\ninterrupted\n" in told
    second = task.partial.read_bytes()
    assert second.startswith(first[: first.rindex(b"\n") + 1])

    result = run(task.config, input_, task.output, *BASE)
    assert f"of them already in {task.partial}" in result.stderr
    assert task.output.read_bytes() == (task.folder / "whole.jsonl").read_bytes()
    assert len(task.answers()) == 120
    assert not task.partial.exists()


@dataclass(frozen=True)
class Sampled:
    """A task of 18 samples, its input, and its expected output."""

    task: Task
    input: Path
    whole: bytes

    @property
    def lines(self) -> list[bytes]:
        return self.whole.splitlines(keepends=True)

    def killed_after(self, answers: bytes) -> None:
        self.task.output.unlink(missing_ok=True)
        self.task.unfinished(answers, self.input, self.task.output)


@pytest.fixture
def sampled(task: Task, run: Callable) -> Sampled:
    task.change("generation", **SAMPLED)
    input_ = task.ask()
    run(task.config, input_, task.output, *BASE)
    return Sampled(task, input_, task.output.read_bytes())


def test_wherever_a_line_is_torn_the_run_goes_on(task: Task, run: Callable, sampled: Sampled):
    lines = sampled.lines
    random.Random(1).shuffle(lines)
    text = b"".join(lines)
    second = len(lines[0]) + len(lines[1])
    for cut in (0, 1, len(lines[0]) - 1, len(lines[0]), second - 1, second, second + 7, len(text) - 1, len(text)):
        sampled.killed_after(text[:cut])
        run(task.config, sampled.input, task.output, *BASE)
        assert task.output.read_bytes() == sampled.whole, cut


def test_damaged_and_repeated_lines_change_nothing(task: Task, run: Callable, sampled: Sampled):
    lines = sampled.lines
    damage = [b"\0" * 40 + b"\n", lines[5][:30] + b"\n", b"[]\n", b'{"no": "key"}\n']
    sampled.killed_after(b"".join([lines[3], lines[0], *damage, lines[0], lines[7]]))
    result = run(task.config, sampled.input, task.output, *BASE)
    assert f"18: 3 per row, 3 of them already in {task.partial}" in result.stderr
    assert task.output.read_bytes() == sampled.whole


def test_a_run_that_was_killed_between_its_outputs_ends_without_overwrite(task: Task, run: Callable):
    task.ask(QUESTIONS[:3], "in/a.jsonl")
    task.ask(QUESTIONS[3:], "in/b.jsonl")
    input_, output = task.folder / "in", task.folder / "out"
    run(task.config, input_, output, *BASE)
    whole = {path.name: path.read_bytes() for path in output.iterdir()}
    task.unfinished(whole["b.jsonl"] + whole["a.jsonl"], input_, output)
    (output / "b.jsonl").unlink()
    run(task.config, input_, output, *BASE)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == whole
    assert not (task.folder / "out.partial").exists()


def test_answers_of_another_job_are_not_mixed_with_this_one(task: Task, run: Callable, sampled: Sampled):
    sampled.killed_after(sampled.lines[0])
    before = task.partial.read_bytes()
    for option, told in [
        ("generation.temperature=0.9", "generation.temperature: 1.0 → 0.9"),
        ("generation.seed=1", "generation.seed: 0 → 1"),
        ("generation.batch_size=5", "generation.batch_size: 4 → 5"),
        ("chat.default_system=Hi", "prompts: "),
        ("model.dtype=bfloat16", "model.dtype: float32 → bfloat16"),
    ]:
        message = run(task.config, sampled.input, task.output, *BASE, "--set", option, expect=2).stderr
        assert f"{task.partial} holds answers of another job (1 of them); what differs:" in message
        assert told in message
    sampled.input.write_text(sampled.input.read_text() + json.dumps({"prompt": "one more"}) + "\n")
    assert "inputs.in.jsonl: " in run(task.config, sampled.input, task.output, *BASE, expect=2).stderr
    assert task.partial.read_bytes() == before
    run(task.config, sampled.input, task.output, *BASE, "--overwrite")
    assert len(task.answers()) == 21


def test_answers_of_weights_that_were_replaced_since_are_not_gone_on_with(
    task: Task, run: Callable, adapters: list[Path]
):
    task.trained(adapters[0])
    input_ = task.ask()
    run(task.config, input_, task.output)
    task.unfinished(task.output.read_bytes(), input_, task.output, "auto")
    task.output.unlink()
    shutil.copy(adapters[1] / "adapter_model.safetensors", task.run)
    message = run(task.config, input_, task.output, expect=2).stderr
    assert f"weights.{task.run}/adapter_model.safetensors: " in message


def test_a_partial_file_without_answers_is_in_nobodys_way(task: Task, run: Callable, sampled: Sampled):
    sampled.killed_after(b'{"file": "in.jso')
    run(task.config, sampled.input, task.output, *BASE, "--set", "generation.seed=1")
    assert len(task.answers()) == 18
    assert task.output.read_bytes() != sampled.whole


def test_a_file_of_somebody_else_is_left_alone(task: Task, run: Callable):
    input_ = task.ask()
    for content in (b"", b"my notes\n", b'{"job": 1', b'{"job": "mine"}\n', b'{"some": "thing"}\n'):
        task.partial.write_bytes(content)
        message = run(task.config, input_, task.output, *BASE, "--overwrite", expect=2).stderr
        assert "does not hold answers" in message
        assert task.partial.read_bytes() == content


def test_overwriting_goes_on_too_where_it_was(task: Task, run: Callable, sampled: Sampled):
    sampled.killed_after(b"".join(sampled.lines[:7]))
    task.output.write_text("an older output\n")
    message = run(task.config, sampled.input, task.output, *BASE, expect=2).stderr
    assert "out.jsonl already exists; choose another name, or replace it with --overwrite" in message
    assert task.output.read_text() == "an older output\n"
    result = run(task.config, sampled.input, task.output, *BASE, "--overwrite")
    assert f"18: 3 per row, 7 of them already in {task.partial}" in result.stderr
    assert task.output.read_bytes() == sampled.whole


@pytest.mark.long
def test_a_run_that_goes_on_with_two_devices_writes_the_same_bytes(
    task: Task, run: Callable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    task.change("generation", **SAMPLED)
    input_ = task.ask(prompts(6))
    run(task.config, input_, task.folder / "whole.jsonl", *BASE)
    whole = (task.folder / "whole.jsonl").read_bytes()
    task.unfinished(b"".join(whole.splitlines(keepends=True)[3:8]), input_, task.output)
    result = run(task.config, input_, task.output, *BASE, "--set", "generation.devices=[cpu, cpu]")
    assert "devices   cpu, cpu" in result.stderr
    assert "18: 3 per row, 5 of them already in" in result.stderr
    assert task.output.read_bytes() == whole
