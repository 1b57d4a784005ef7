"""Tiny reinforcement-learning runs: their input files, processes and output."""

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from forked_command import ForkedCommand, in_processes
from rl.rl_serving import Reply, spoiling
from running import BIN, metrics

STEPS = 8
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}

# On a busy machine, imports alone may take a minute.
_LONGEST_SECONDS = 250.0

# A random model matches each of these now and then, so rewards, which are sevenths, differ within a group.
_GRADERS = {
    "says_a": {"type": "regex", "pattern": "(?s).*a.*"},
    "says_e": {"type": "regex", "pattern": "(?s).*e.*"},
    "says_digit": {"type": "regex", "pattern": r"(?s).*\d.*"},
}
_WEIGHTS = {"says_a": 4, "says_e": 2, "says_digit": 1}


def write_run(folder: Path, model: Path, /, *, name: str = "rl", data: Mapping[str, Any] = {}, **changes: Any) -> Path:
    """Write two data sets, a dataserver config and a run config of 8 steps over two stages; returns the run config.

    An optimizer step is two groups of 4 completions, in two micro-batches. `data` is merged into the dataserver config
    and `changes` into the run config; None removes a section.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for dataset, start in (("a", 0), ("b", 100)):
        rows = [{"prompt": f"Say {number} apples. " * (number % 3 + 1)} for number in range(start, start + 20)]
        (folder / f"{dataset}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "data.yaml").write_text(yaml.safe_dump(_merged(_data_config(), data)))
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(_merged(_run_config(model), changes)))
    return path


def _data_config() -> dict[str, Any]:
    dataset = {"gold": None, "graders": _WEIGHTS, "validation_fraction": 0.25}
    return {
        "prompts_per_iteration": 2,
        "datasets": {name: {"path": f"{name}.jsonl", **dataset} for name in ("a", "b")},
        "graders": _GRADERS,
        "stages": [
            {"name": "one", "until_step": 4, "mix": {"a": 1}},
            {"name": "two", "until_step": STEPS, "mix": {"a": 1, "b": 1}},
        ],
        "limits": {"workers": 1},
        "journal": {"path": "journal.sqlite", "batch_seconds": 0.05},
    }


def _run_config(model: Path) -> dict[str, Any]:
    return {
        "model": {"name": str(model)},
        "lora": {"r": 4, "dropout": 0.1},
        "dataserver": {"config": "data.yaml"},
        "algorithm": "dr_grpo",
        "rollout": {"generations": 4, "max_new_tokens": 8},
        "evaluation": {"every": 2, "prompts": 6, "max_new_tokens": 8, "temperature": 1.0, "samples": 2},
        "training": {"rows_per_step": 8, "micro_batch_size": 4, "learning_rate": 1e-2},
        "run": {"save_every": 2, "keep_checkpoints": 9},
    }


def _merged(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, change in changes.items():
        if change is None:
            merged.pop(key)
        else:
            merged[key] = {**merged.get(key, {}), **change} if isinstance(change, Mapping) else change
    return merged


@contextmanager
def started(
    config: Path, *options: str, processes: int = 1, forked: bool = True
) -> Iterator[subprocess.Popen[bytes] | ForkedCommand]:
    """Start a run in the background and kill it on exit; `said(config)` returns its output.

    Processes that are not `forked` import everything themselves, and several have a real torchrun.
    """
    words, output = [str(BIN / "toolkit-rl-train"), str(config), *options], config.with_suffix(".log")
    if forked:
        process = ForkedCommand(in_processes(processes, words), output, output)
    else:
        launch = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
        with output.open("ab") as log:
            environment = {**os.environ, **ENVIRONMENT}
            process = subprocess.Popen(
                [*launch, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
    try:
        yield process
    finally:
        # Under torchrun, kill the ranks too if the run is still alive.
        ranks = psutil.Process(process.pid).children() if processes > 1 and process.poll() is None else []
        for each in (process, *ranks):
            each.send_signal(signal.SIGKILL)
        process.wait()


def run(config: Path, *options: str, processes: int = 1, expect: int = 0, forked: bool = True) -> Path:
    """Run to completion; returns the run directory."""
    forked = forked and (processes == 1 or expect == 0)  # forks would inherit torchrun's handler of SIGTERM
    with started(config, *options, processes=processes, forked=forked) as process:
        code = process.wait(_LONGEST_SECONDS)
    assert code == expect, said(config)
    return folder_of(config)


def kill_after(config: Path, step: int, processes: int = 1) -> None:
    """Start a run, and kill all of its processes once it has done `step` optimizer steps."""
    with started(config, processes=processes) as process:
        wait_for_step(config, step, process)


def said(config: Path) -> str:
    """The output so far of all runs of a config, with whitespace collapsed."""
    return " ".join(config.with_suffix(".log").read_text(errors="replace").split())


def folder_of(config: Path) -> Path:
    """The run directory of a config."""
    return config.parent / "runs" / config.stem


def staleness_of(config: Path) -> int:
    """The `rollout.staleness` of a config."""
    return int(config.read_text().split("staleness: ")[1].split()[0])


def wait_for_step(config: Path, step: int, process: subprocess.Popen[bytes] | ForkedCommand | None = None) -> None:
    """Wait until metrics.jsonl has `step` optimizer steps; fails if the process ends first."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while steps_done(config) < step:
        assert process is None or process.poll() is None, f"the run ended: {said(config)}"
        assert time.monotonic() < deadline, f"too late: {said(config)}"
        time.sleep(0.01)


def steps_done(config: Path) -> int:
    """The number of optimizer steps in metrics.jsonl."""
    file = folder_of(config) / "metrics.jsonl"
    return file.read_text().count('"loss"') if file.exists() else 0


def server_pid(config: Path) -> int:
    """The process id of the dataserver that a run started."""
    ready = folder_of(config).with_name(f"{config.stem}.dataserver.log.ready.json")
    return json.loads(ready.read_text())["pid"]


def lines(file: Path) -> list[dict[str, Any]]:
    """The parsed lines of a .jsonl file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def training_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl that are optimizer steps."""
    return [row for row in rows if "loss" in row]


def journal(config: Path) -> list[tuple[Any, ...]]:
    """The journal, sorted: split, iteration, slot, item, sample, completion and reward of each completion."""
    with closing(sqlite3.connect(config.with_name("journal.sqlite"))) as database:
        query = "SELECT split, iteration, slot, item_id, sample_id, completion, reward FROM grades ORDER BY 1, 2, 3, 4"
        return database.execute(query).fetchall()


def requests(config: Path) -> list[tuple[int, int]]:
    """Iteration and number of completions of each request for training rewards in the journal, sorted."""
    with closing(sqlite3.connect(config.with_name("journal.sqlite"))) as database:
        query = (
            "SELECT iteration, count(*) FROM grades WHERE split = 'train' GROUP BY iteration, request_id ORDER BY 1, 2"
        )
        return database.execute(query).fetchall()


def require_same_runs(one: Path, other: Path, last: int = STEPS) -> None:
    """Assert that the runs of two configs have the same metrics, completions, evaluations and weights."""
    a, b = folder_of(one), folder_of(other)
    assert metrics(a) == metrics(b)
    assert lines(a / "completions.jsonl") == lines(b / "completions.jsonl")
    evaluations = {file.name: file.read_bytes() for file in (a / "evaluations").iterdir()}
    assert evaluations == {file.name: file.read_bytes() for file in (b / "evaluations").iterdir()}
    for file in ("adapter_model.safetensors", f"checkpoint-{last}/optimizer.pt"):
        assert (a / file).read_bytes() == (b / file).read_bytes()
    tokens = [json.loads((run / "result.json").read_text())["tokens"] for run in (a, b)]
    assert tokens[0] == tokens[1]


def train_here(
    config: Path, overrides: tuple[str, ...] = (), *, resume: bool = False, rollouts_from: Path | None = None
) -> dict[str, Any]:
    """Run in this process, on one thread like the subprocesses; returns the result."""
    import torch

    from posttrain.config.load import load_config
    from posttrain.rl.config import RLConfig
    from posttrain.rl.train import train

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        settings = load_config(config, RLConfig, list(overrides))
        return train(settings, config.stem, resume=resume, rollouts_from=rollouts_from)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def refusing(url: str, refuse: Callable[[str, dict[str, Any]], bool]) -> Iterator[str]:
    """The URL of a proxy for the server at `url` that answers 503 if `refuse(path, body)`."""
    with spoiling(url) as (address, proxy):
        passed_on = proxy.answer

        def answer(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
            plain = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
            if plain and refuse(path, json.loads(plain)):
                return Reply(503, {}, b"")
            return passed_on(method, path, headers, body)

        proxy.answer = answer
        yield address


WriteRun = Callable[..., Path]
