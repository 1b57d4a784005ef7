"""Speed of the dataserver, on a machine that it shares with its client.

python benchmarks/dataserver.py [--requests N] [--output FILE]

Prints a Markdown table, and writes the same numbers as JSON.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import measuring
import psutil

ROWS = 100_000
COMPLETION_BYTES = 2000
PROMPTS = 8
ITEMS = 64


def main() -> None:
    """Measure, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--requests", type=int, default=1_500, help="requests of the memory test")
    options = parser.parse_args()
    if options.short:
        options.requests = 20
    with tempfile.TemporaryDirectory() as folder:
        numbers = measure(Path(folder), options.requests, repeats=5 if options.short else 200)
    measuring.publish(numbers, markdown(numbers), options.output)


def measure(folder: Path, requests: int, repeats: int) -> dict[str, float]:
    """All figures, in the units that their names say."""
    os.environ["POSTTRAIN_TOOLKIT_CACHE"] = str(folder / "cache")
    write_data(folder / "data.jsonl")
    cheap, maths = write_config(folder, "cheap", "number_exact"), write_config(folder, "maths", "math_verify")
    numbers: dict[str, float] = {}
    with served(cheap) as (_, _, seconds):
        numbers["start, cold, s"] = seconds
    with served(cheap) as (client, process, seconds):
        numbers["start, warm, s"] = seconds
        numbers |= percentiles("sample of 8", timed(repeats, lambda number: sample(client, number)))
        samples = sample(client, 0)
        numbers |= percentiles("grade of 64, cheap", timed(repeats, lambda _: grade(client, samples, ITEMS)))
        numbers["cheap items per s"] = throughput(client, samples, seconds=10.0)
        numbers |= memory(client, process, samples, requests)
    with served(maths):
        pass  # the golds of this grader are checked and remembered
    with served(maths) as (client, _, _):
        samples = sample(client, 0)
        numbers |= percentiles(
            "grade of 64, math_verify", timed(min(repeats, 50), lambda _: grade(client, samples, ITEMS))
        )
    return numbers


def write_data(path: Path) -> None:
    """Sums with their answers."""
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(ROWS):
            one, other = draw.randrange(10_000), draw.randrange(10_000)
            question = f"Add the numbers {one} and {other}, and show how you do it. " * 4
            file.write(json.dumps({"question": question, "answer": f"{one} + {other} #### {one + other}"}) + "\n")


def write_config(folder: Path, name: str, grader: str) -> Path:
    """One data set, one grader, a journal: what a run has."""
    path = folder / f"{name}.yaml"
    config = {
        "prompts_per_iteration": PROMPTS,
        "datasets": {
            "sums": {
                "path": "data.jsonl",
                "columns": {"prompt": "question"},
                "gold": {"extract": {"after": "####"}},
                "graders": {grader: 1},
            }
        },
        "stages": [{"name": "all", "until_step": 1_000_000, "mix": {"sums": 1}}],
        "journal": {"path": f"{name}.sqlite"},
    }
    path.write_text(json.dumps(config))
    return path


@contextmanager
def served(config: Path) -> Iterator[tuple[httpx.Client, psutil.Process, float]]:
    """A running server: a client, its process, and the seconds from the command until it was ready."""
    ready = config.with_suffix(".ready")
    begin = time.perf_counter()
    command = [Path(sys.executable).with_name("toolkit-rl-dataserver"), config, "--port", "0", "--ready-file", ready]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not ready.exists():
            if server.poll() is not None:
                raise SystemExit(f"the server ended with exit code {server.returncode}")
            time.sleep(0.005)
        seconds = time.perf_counter() - begin
        with httpx.Client(base_url=json.loads(ready.read_text())["url"], timeout=60, trust_env=False) as client:
            yield client, psutil.Process(server.pid), seconds
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


def sample(client: httpx.Client, iteration: int) -> list[str]:
    """Sample ids of an iteration."""
    answer = client.post("/sample", json={"iteration": iteration, "batch_size": PROMPTS}).raise_for_status().json()
    return [each["sample_id"] for each in answer["samples"]]


def grade(client: httpx.Client, samples: list[str], items: int) -> None:
    """Grade completions that were never graded before."""
    filler = "so we carry the one and write the digit below the line, "
    body = {
        "iteration": 0,
        "request_id": str(random.getrandbits(64)),
        "items": [
            {
                "item_id": str(number),
                "sample_id": samples[number % len(samples)],
                "completion": f"{random.random()} {filler * 40}"[: COMPLETION_BYTES - 20] + f" \\boxed{{{number}}}",
                "completion_tokens": 500,
            }
            for number in range(items)
        ],
    }
    results = client.post("/grade", json=body).raise_for_status().json()["results"]
    if [result["status"] for result in results] != ["ok"] * items:
        raise SystemExit(f"a completion was not graded: {results}")


def timed(count: int, act: Callable[[int], Any]) -> list[float]:
    """Seconds of each call, after five that warm up."""
    seconds = []
    for number in range(count + 5):
        begin = time.perf_counter()
        act(number)
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds[5:])


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Median and 95th percentile in milliseconds."""
    return {
        f"{name}, p50, ms": 1000 * seconds[len(seconds) // 2],
        f"{name}, p95, ms": 1000 * seconds[int(0.95 * len(seconds))],
    }


def throughput(client: httpx.Client, samples: list[str], seconds: float) -> float:
    """Completions per second of two clients at once, in requests of 512."""
    done = [0, 0]
    end = time.perf_counter() + seconds

    def ask(place: int) -> None:
        while time.perf_counter() < end:
            grade(client, samples, 512)
            done[place] += 512

    begin = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begin)


def memory(client: httpx.Client, process: psutil.Process, samples: list[str], requests: int) -> dict[str, float]:
    """Resident memory of all the server's processes, after a tenth of the requests and after all of them."""
    sizes = []
    for number in range(requests):
        grade(client, samples, 16)
        if number in (requests // 10, requests - 1):
            processes = [process, *process.children(recursive=True)]
            sizes.append(sum(each.memory_info().rss for each in processes) / 2**20)
    return {
        "memory after a tenth of the requests, MiB": sizes[0],
        "memory after all requests, MiB": sizes[1],
    }


def markdown(numbers: dict[str, float]) -> str:
    """The figures as a table."""
    rows = [[name, f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"] for name, value in numbers.items()]
    return measuring.markdown_table(["dataserver", ""], rows)


if __name__ == "__main__":
    main()
