"""Speed of the dataserver on a machine that it shares with its client.

python benchmarks/dataserver.py [--requests N] [--output FILE]

The cheap grader compares whole numbers. math_verify gets fractions as gold answers, different ones in each request,
and answers that it must parse: unreduced fractions, differences and decimals, three out of four of them right.
Prints a Markdown table, and writes the same numbers as JSON.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import measuring
import psutil

ROWS = 100_000
FRACTIONS = 2000
COMPLETION_BYTES = 2000
WARM_UP = 5
"""Calls left out of the percentiles."""
PROMPTS = 8
ITEMS = 64
FRACTION = re.compile(r"Divide ([0-9]+) by ([0-9]+)")


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
    """All figures, in the units that their names give."""
    os.environ["POSTTRAIN_TOOLKIT_CACHE"] = str(folder / "cache")
    measuring.write_rows(folder / "sums.jsonl", sums())
    measuring.write_rows(folder / "fractions.jsonl", fractions())
    cheap, maths = write_config(folder, "sums", "number_exact"), write_config(folder, "fractions", "math_verify")
    numbers: dict[str, float] = {}
    with served(cheap) as (_, _, seconds):
        numbers["start, cold, s"] = seconds
    with served(cheap) as (client, process, seconds):
        numbers["start, warm, s"] = seconds
        numbers |= percentiles("sample of 8", timed(repeats, lambda number: sample(client, number)))
        samples = list(sample(client, 0))
        numbers |= percentiles("grade of 64, cheap", timed(repeats, lambda _: grade(client, whole_numbers(samples))))
        numbers["cheap items per s"] = throughput(client, samples, seconds=10.0)
        numbers |= memory(client, process, samples, requests)
    with served(maths):
        pass  # checks and caches this grader's gold answers
    with served(maths) as (client, _, _):
        count = min(repeats, 50)
        asked = [written_fractions(sample(client, iteration), iteration) for iteration in range(count + WARM_UP + 1)]
        if grade(client, asked.pop()) != 0.75 * ITEMS:
            raise SystemExit("math_verify did not find three of four answers right")
        seconds = timed(count, lambda iteration: grade(client, asked[iteration]))
        numbers |= percentiles("grade of 64, math_verify", seconds)
    return numbers


def sums() -> Iterator[dict[str, str]]:
    """Sums with their answers."""
    draw = random.Random(0)
    for _ in range(ROWS):
        one, other = draw.randrange(10_000), draw.randrange(10_000)
        question = f"Add the numbers {one} and {other}, and show how you do it. " * 4
        yield {"question": question, "answer": f"{one} + {other} #### {one + other}"}


def fractions() -> Iterator[dict[str, str]]:
    """Divisions with their answers as LaTeX; as decimals they are finite."""
    draw = random.Random(0)
    for _ in range(FRACTIONS):
        above, below = draw.randrange(1, 1000), draw.choice((4, 8, 16, 20, 25, 32, 40, 50, 80))
        question = f"Divide {above} by {below}, and show how you do it. " * 4
        yield {"question": question, "answer": rf"{above}/{below} #### \frac{{{above}}}{{{below}}}"}


def write_config(folder: Path, name: str, grader: str) -> Path:
    """The config of a typical run: one data set, one grader, and a journal."""
    path = folder / f"{name}.yaml"
    config = {
        "prompts_per_iteration": PROMPTS,
        "datasets": {
            name: {
                "path": f"{name}.jsonl",
                "columns": {"prompt": "question"},
                "gold": {"extract": {"after": "####"}},
                "graders": {grader: 1},
            }
        },
        "stages": [{"name": "all", "until_step": 1_000_000, "mix": {name: 1}}],
        "journal": {"path": f"{name}.sqlite"},
    }
    path.write_text(json.dumps(config))
    return path


@contextmanager
def served(config: Path) -> Iterator[tuple[httpx.Client, psutil.Process, float]]:
    """A running server: a client, the server process, and the seconds from the command until it was ready."""
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


def sample(client: httpx.Client, iteration: int) -> dict[str, str]:
    """The prompts of an iteration, by sample id."""
    answer = client.post("/sample", json={"iteration": iteration, "batch_size": PROMPTS}).raise_for_status().json()
    return {each["sample_id"]: each["messages"][-1]["content"] for each in answer["samples"]}


def whole_numbers(samples: Sequence[str], items: int = ITEMS) -> list[tuple[str, str]]:
    """Pairs of a sample and an answer, cycling through the samples."""
    return [(samples[number % len(samples)], str(number)) for number in range(items)]


def written_fractions(samples: dict[str, str], seed: int) -> list[tuple[str, str]]:
    """The same for `fractions`: one answer in four is wrong, and the right ones are written in three ways."""
    draw = random.Random(seed)
    answers = []
    for number in range(ITEMS):
        sample_id, prompt = list(samples.items())[number % len(samples)]
        found = FRACTION.search(prompt)
        assert found is not None
        above, below = map(int, found.groups())
        times = draw.randrange(2, 10_000)
        ways = (
            rf"\frac{{{above * times}}}{{{below * times}}}",
            rf"{times} - \frac{{{below * times - above}}}{{{below}}}",
            str(above / below),
            rf"\frac{{{above * times + 1}}}{{{below * times}}}",
        )
        answers.append((sample_id, ways[number // len(samples) % len(ways)]))
    return answers


def grade(client: httpx.Client, answers: Sequence[tuple[str, str]]) -> float:
    """Grade new completions, each with the answer to its sample, and return the sum of the rewards."""
    filler = "so we carry the one and write the digit below the line, "
    body = {
        "iteration": 0,
        "request_id": str(random.getrandbits(64)),
        "items": [
            {
                "item_id": str(number),
                "sample_id": sample_id,
                "completion": f"{random.random()} {filler * 40}"[: COMPLETION_BYTES - 20] + rf" \boxed{{{answer}}}",
                "completion_tokens": 500,
            }
            for number, (sample_id, answer) in enumerate(answers)
        ],
    }
    results = client.post("/grade", json=body).raise_for_status().json()["results"]
    if [result["status"] for result in results] != ["ok"] * len(answers):
        raise SystemExit(f"a completion was not graded: {results}")
    return sum(result["reward"] for result in results)


def timed(count: int, act: Callable[[int], Any]) -> list[float]:
    """Seconds of each call, sorted; the first calls warm up and are left out."""
    seconds = []
    for number in range(count + WARM_UP):
        begin = time.perf_counter()
        act(number)
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds[WARM_UP:])


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Median and 95th percentile in milliseconds."""
    return {
        f"{name}, p50, ms": 1000 * seconds[len(seconds) // 2],
        f"{name}, p95, ms": 1000 * seconds[int(0.95 * len(seconds))],
    }


def throughput(client: httpx.Client, samples: list[str], seconds: float) -> float:
    """Completions per second with two clients at once, in requests of 512."""
    done = [0, 0]
    end = time.perf_counter() + seconds

    def ask(place: int) -> None:
        while time.perf_counter() < end:
            grade(client, whole_numbers(samples, 512))
            done[place] += 512

    begin = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begin)


def memory(client: httpx.Client, process: psutil.Process, samples: list[str], requests: int) -> dict[str, float]:
    """Resident memory of all server processes, after a tenth of the requests and after all of them."""
    sizes = []
    for number in range(requests):
        grade(client, whole_numbers(samples, 16))
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
