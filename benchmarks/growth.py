"""How the start of a run grows with its data: time and memory to prepare the rows, and to find them in the cache.

python benchmarks/growth.py [--rows N ...] [--largest] [--pairs] [--folder DIR] [--output FILE]

The rows are made up, about 80 tokens each, or pairs of answers with --pairs. Each start is its own process: the clock
starts after the imports and the packaged model's tokenizer are loaded, and stops when the first optimizer step is
planned and its rows are read. The cold start tokenises; the warm ones find the tokens in the cache. The first warm
start hashes the data file, the next reuses the hash (remembered once the file is a minute old), and the last holds out
a hundredth of the rows, in a split that an earlier start made. Memory is the peak resident set above the imports,
including the pages of mapped files. With --largest, 10 million rows, only the warm starts are measured: their tokens
are drawn at random and written by the toolkit's own writer. Prints a Markdown table.
"""

import argparse
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measuring
import numpy as np

LARGEST = 10_000_000
ROWS_PER_STEP = 32
DRAWS = 10_000
HELD_OUT = {"fraction": 0.01}
MIB = 2**20
SETTLED_SECONDS = 62
"""How old a file must be for its hash to be remembered."""


def main() -> None:
    """Measure each number of rows, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="sizes of the data")
    parser.add_argument("--largest", action="store_true", help=f"also {LARGEST:,} rows, without the cold start")
    parser.add_argument("--pairs", action="store_true", help="preference pairs, as toolkit-dpo reads them")
    parser.add_argument("--folder", type=Path, default=None, help="where 1.5 GB per million rows may be written")
    parser.add_argument("--size", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        measuring.tell(RUNS[options.run](options))
        return
    sizes = [1_000, 2_000] if options.short else [*options.rows, *[LARGEST] * options.largest]
    numbers = {f"{size}": measure(options, size) for size in sizes}
    measuring.publish(numbers, markdown(numbers), options.output)


def measure(options: argparse.Namespace, size: int) -> dict[str, Any]:
    """All starts on data of one size."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        os.environ["POSTTRAIN_TOOLKIT_CACHE"] = str(folder / "cache")
        arguments = ("--folder", name, "--size", str(size))
        write_data(folder / "data.jsonl", size, pairs=options.pairs)
        written = time.monotonic()
        if size == LARGEST:
            cold = measuring.in_a_process("made up", *arguments)
        else:
            cold = measuring.in_a_process("cold", *arguments)
        if not options.short:
            time.sleep(max(0.0, written + SETTLED_SECONDS - time.monotonic()))
        shutil.rmtree(folder / "cache" / "digests", ignore_errors=True)
        starts = {"warm, hashed": "warm", "warm": "warm", "split, first": "split", "split": "split"}
        found = {start: measuring.in_a_process(run, *arguments) for start, run in starts.items()}
        return {
            "file MB": (folder / "data.jsonl").stat().st_size / 1e6,
            "cache MB": sum(path.stat().st_size for path in (folder / "cache").rglob("*.npy")) / 1e6,
            "cold": cold,
            **found,
        }


def start(options: argparse.Namespace, *, validation: dict[str, float] | None) -> dict[str, Any]:
    """Seconds and MiB of one start, and microseconds per draw."""
    config, tokenizer = config_and_tokenizer(options, validation)
    if options.pairs:
        from posttrain.dpo.data import prepare_data
    else:
        from posttrain.sft.data import prepare_data
    from posttrain.data.curriculum.micro_batches import MicroBatchSize
    from posttrain.data.curriculum.step_plan import StepPlanner

    floor = reset_peak()
    began = time.perf_counter()
    data = prepare_data(config, tokenizer, lambda line: None)
    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    plan = StepPlanner(data.curriculum, sizes, MicroBatchSize(ROWS_PER_STEP)).plan(0)
    tokens = sum(len(row) for draw in plan.draws for row in tokens_of(data.datasets[draw.dataset], draw.row))
    seconds, peak = time.perf_counter() - began, memory("VmHWM") - floor
    assert tokens == plan.tokens
    return {
        "seconds": seconds,
        "peak MiB": peak / MIB,
        "rows": len(data.datasets["rows"]),
        "tokens": data.ledgers[0].tokens,
        "draw µs": microseconds_of_a_draw(data.curriculum),
    }


def tokens_of(dataset: Any, row: int) -> Iterator[np.ndarray]:
    """The ids of a row, or of both sides of a pair."""
    for side in (dataset.chosen, dataset.rejected) if hasattr(dataset, "chosen") else (dataset,):
        yield side.row(row)[0]


def microseconds_of_a_draw(curriculum: Any) -> float:
    """The mean over draws spread across the whole run."""
    steps = np.linspace(0, curriculum.total_steps - 1, DRAWS).astype(int).tolist()
    began = time.perf_counter()
    for step in steps:
        curriculum.draw(step, step % ROWS_PER_STEP)
    return (time.perf_counter() - began) / DRAWS * 1e6


def make_up(options: argparse.Namespace) -> dict[str, Any]:
    """Write the cache that a cold start would leave, but with random tokens."""
    from posttrain.data import tokenized
    from posttrain.data.ledger import Ledger
    from posttrain.data.preparation import tokenized_folder
    from posttrain.data.sources import open_source
    from posttrain.data.token_arrays import TokenArrays
    from posttrain.models.tokens import training_template

    if options.pairs:
        raise SystemExit("--largest is for rows, not for pairs")
    config, tokenizer = config_and_tokenizer(options, None)
    source = open_source(config.datasets["rows"])
    ledger = Ledger("rows", records=options.size, rows=options.size)
    folder = tokenized_folder(
        source, config.chat, tokenizer, config.on_bad_record, training_template(config.chat, tokenizer)
    )
    draw, batch = np.random.default_rng(0), 10_000
    with tokenized.new_dataset(folder, ledger, source.digest) as writer:
        for first in range(0, options.size, batch):
            lengths = draw.integers(40, 121, batch)
            ids = draw.integers(0, 49_000, lengths.sum(), dtype=np.int32)
            described = {
                "lines": np.arange(first, first + batch) + 1,
                "weights": np.ones(batch, dtype=np.float32),
                "contents": draw.integers(0, 2**64, batch, dtype=np.uint64),
            }
            rows = TokenArrays.of(ids, ids % 2 == 0, lengths, described)
            ledger.count_tokens(rows.lengths, rows.trained_counts)
            ledger.count_ends(batch, 0)
            writer.add(rows)
    return {}


RUNS = {
    "cold": lambda options: start(options, validation=None),
    "made up": make_up,
    "warm": lambda options: start(options, validation=None),
    "split": lambda options: start(options, validation=HELD_OUT),
}


def config_and_tokenizer(options: argparse.Namespace, validation: dict[str, float] | None) -> tuple[Any, Any]:
    """The config and tokenizer of a run that goes through the data once."""
    from posttrain.config.load import load_config
    from posttrain.models.load import choose_backend

    if options.pairs:
        from posttrain.dpo.config.dpo import DPOConfig as Config
    else:
        from posttrain.sft.config import SFTConfig as Config
    config = {
        "model": {"name": options.model},
        "datasets": {"rows": {"path": str(options.folder / "data.jsonl")}},
        "stages": [{"name": "all", "until_step": max(1, options.size // ROWS_PER_STEP), "mix": {"rows": 1}}],
        "training": {"rows_per_step": ROWS_PER_STEP, "micro_batch_size": ROWS_PER_STEP},
        "validation": validation,
    }
    settings = load_config(measuring.write_config(options.folder / "run.yaml", config), Config)
    return settings, choose_backend(settings.model).load_tokenizer(settings.model, chatml=True)


def write_data(path: Path, size: int, *, pairs: bool) -> None:
    """Write rows of common words, no two of them the same."""
    words = sorted(set(re.findall(r"[a-z]{2,9}", Path(argparse.__file__).read_text())))
    draw = np.random.default_rng(0)
    sentences = [" ".join(words[at] for at in draw.integers(0, len(words), 13)) for _ in range(1000)]
    with path.open("w") as file:
        for row in range(size):
            prompt, answer = f"{row}: {sentences[row % 997]}?", f"{sentences[row % 991]}. {sentences[row % 983]}."
            if pairs:
                other = sentences[row % 977]
                file.write(f'{{"prompt": "{prompt}", "chosen": "{answer}", "rejected": "{other}."}}\n')
            else:
                file.write(f'{{"prompt": "{prompt}", "completion": "{answer}"}}\n')


def reset_peak() -> int:
    """Restart the peak measurement; returns the bytes of the resident set now, the floor of the peak."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(field: str) -> int:
    """Bytes of this process, as Linux counts them."""
    return int(re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024


def markdown(numbers: dict[str, Any]) -> str:
    """A row for each size of the data."""
    head = ["rows", "file MB", "cold s", "rows/s", "MiB", "warm s, hashing", "warm s", "MiB"]
    head += ["first split s", "MiB", "split s", "MiB", "draw µs"]
    rows = []
    for size, found in numbers.items():
        cells = [f"{int(size):,}", f"{found['file MB']:,.0f}"]
        cells += [*cold_cells(found["cold"]), f"{found['warm, hashed']['seconds']:.2f}"]
        for start in ("warm", "split, first", "split"):
            cells += [f"{found[start]['seconds']:.2f}", f"{found[start]['peak MiB']:,.0f}"]
        rows.append([*cells, f"{found['warm']['draw µs']:.1f}"])
    return measuring.markdown_table(head, rows)


def cold_cells(cold: dict[str, Any]) -> list[str]:
    """Empty if the tokens were made up."""
    if not cold:
        return [""] * 3
    return [f"{cold['seconds']:.1f}", f"{cold['rows'] / cold['seconds']:,.0f}", f"{cold['peak MiB']:,.0f}"]


if __name__ == "__main__":
    main()
