"""A model behind servers of our own, real processes: their answers, what becomes of a dead one, and what is refused."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from predict_cases import QUESTIONS, Task
from test_predict_resume import prompts

from serve.serve_cases import Server, serving, until, write_config

SAMPLED = {"temperature": 1.0, "n": 3, "max_new_tokens": 12, "seed": 5}


@pytest.fixture(scope="module")
def config(sharp_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("servers") / "run.yaml", sharp_model)


@pytest.fixture(scope="module")
def servers(config: Path) -> Iterator[list[Server]]:
    """Two that live as long as the tests."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(config)) for _ in range(2)]


@pytest.fixture
def of_one(task: Task, servers: list[Server], run: Callable) -> bytes:
    """What one server answers to `in.jsonl`: three answers to each of 40 prompts."""
    run(ask(task, servers[:1]), task.ask(prompts(40)), task.folder / "one.jsonl")
    return (task.folder / "one.jsonl").read_bytes()


def ask(task: Task, servers: list[Server], **model: object) -> Path:
    """Write `served.yaml`, which asks these servers."""
    urls = [f"{server.url}/v1" for server in servers]
    config = {"model": {"url": urls, "model": "run:base", **model}, "generation": SAMPLED}
    path = task.folder / "served.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def meanwhile(task: Task, answers: int, act: Callable[[], None]) -> Iterator[None]:
    """Do something once so many answers are on disk, and before the block ends."""

    def watch() -> None:
        until(lambda: task.partial.is_file() and task.partial.read_bytes().count(b"\n") > answers)
        assert not task.output.exists()
        act()

    with ThreadPoolExecutor(1) as threads:
        acting = threads.submit(watch)
        yield
        acting.result()


def test_the_answers_of_two_servers_are_those_of_one(task: Task, servers: list[Server], run: Callable, of_one: bytes):
    told = run(ask(task, servers), task.folder / "in.jsonl", task.output).stderr
    assert f"model     run:base at {servers[0].url}/v1, {servers[1].url}/v1\n" in told
    assert "at most 12 tokens, 8 at once at each server" in told
    assert task.output.read_bytes() == of_one
    assert len({(line["row"], line["sample"]) for line in task.answers()}) == 120


def test_a_server_that_is_killed_is_left_out_and_its_rows_are_asked_of_the_other(
    task: Task, config: Path, servers: list[Server], run: Callable, of_one: bytes, caplog: pytest.LogCaptureFixture
):
    with serving(config) as other, meanwhile(task, 20, other.process.kill):
        run(ask(task, [servers[0], other]), task.folder / "in.jsonl", task.output)
    [told] = [message for message in caplog.messages if "it is left out until it answers again" in message]
    assert f"at {other.url}/v1 " in told
    assert task.output.read_bytes() == of_one


def test_a_server_that_hangs_is_left_out_and_used_again_when_it_answers(
    task: Task, servers: list[Server], run: Callable, caplog: pytest.LogCaptureFixture
):
    def hang() -> None:
        servers[1].process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: "left out" in caplog.text)
        finally:
            servers[1].process.send_signal(signal.SIGCONT)

    input_ = task.ask(prompts(160))
    run(ask(task, servers[:1]), input_, task.folder / "one.jsonl")
    with meanwhile(task, 20, hang):
        run(ask(task, servers, request_seconds=1, concurrency=2), input_, task.output)
    hung, back = f"at {servers[1].url}/v1 did not answer", f"at {servers[1].url}/v1 is used again"
    assert [hung in message or back in message for message in caplog.messages] == [True] * len(caplog.messages)
    assert hung in caplog.messages[0] and back in caplog.messages[-1]
    assert task.output.read_bytes() == (task.folder / "one.jsonl").read_bytes()


def test_what_was_answered_before_all_servers_died_is_not_asked_again(
    task: Task, config: Path, servers: list[Server], run: Callable, of_one: bytes
):
    with serving(config) as one, serving(config) as two:

        def kill() -> None:
            one.process.kill()
            two.process.kill()

        path = ask(task, [one, two], retries=1)
        with meanwhile(task, 20, kill):
            told = run(path, task.folder / "in.jsonl", task.output, expect=1).stderr
    assert "cannot be reached" in told and "3 attempts failed" in told
    kept = task.partial.read_bytes()
    count = kept.count(b"\n") - 1
    assert count >= 20 and f"{count} of 120 answers are kept" in told
    # Those that come back have other addresses.
    again = run(ask(task, servers, retries=1), task.folder / "in.jsonl", task.output).stderr
    assert f"{count} of them already in" in again
    assert task.output.read_bytes() == of_one


def test_shards_are_asked_of_servers_too(task: Task, servers: list[Server], run: Callable, of_one: bytes):
    path = ask(task, servers)
    for number in (1, 2, 3):
        run(path, task.folder / "in.jsonl", task.output, "--shard", f"{number}/3")
    run(path, task.folder / "in.jsonl", task.output, "--join")
    assert task.output.read_bytes() == of_one


def test_a_row_without_a_prompt_is_refused_or_left_out(task: Task, servers: list[Server], run: Callable):
    rows = [*QUESTIONS[:2], {"messages": [{"role": "assistant", "content": "I begin."}]}]
    input_, path = task.ask(rows), ask(task, servers)
    assert "in.jsonl:3: there is no prompt before the answer" in run(path, input_, task.output, expect=2).stderr
    assert "left out: " in run(path, input_, task.output, "--set", "on_bad_record=skip").stderr
    assert len(task.answers()) == 6


def test_what_a_server_cannot_do_is_refused_before_it_is_asked(task: Task, servers: list[Server], run: Callable):
    input_, path = task.ask(), ask(task, servers)
    for options, reason in [
        (["--set", "generation.logprobs=true"], "a model behind a server gives none"),
        (["--weights", "base"], "--weights chooses weights on this machine"),
        (["--checkpoint", "4"], "--checkpoint chooses weights on this machine"),
        (["--set", "model.token_env=NOT_SET_HERE"], "NOT_SET_HERE is not set"),
        (["--set", "chat.max_length=5"], "unknown key"),
    ]:
        assert reason in run(path, input_, task.output, *options, expect=2).stderr
    assert not task.partial.exists()
    assert "nothing was generated" in run(path, input_, task.output, "--dry-run").stderr
