"""Memory of each process that trains a model of a billion weights: alone, with a copy each, and with a share each.

python benchmarks/sharding.py [--folder DIR] [--output FILE]

The model is made up, in float32, and the rows are short, so that nearly all memory is weights, gradients and states of
the optimizer. Memory is the peak of what no file backs, over that of the imports, in the process that has the most;
weights that are only mapped from a file do not count. Two processes take turns on the two cores, and exchange by Gloo
over loopback, so the times say nothing about GPUs. Prints a Markdown table.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
import psutil

from merge import GIB, TINY  # pyright: ignore[reportAttributeAccessIssue]  # benchmarks/merge.py

BILLION: dict[str, Any] = {
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 25,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
"""Of 0.94 B weights the embedding, which is also the head, has 0.08 B."""
STEPS = 3
OPTIMIZERS: dict[str, dict[str, Any]] = {"adamw": {"optimizer": "adamw"}, "sgd": {"optimizer": "sgd", "momentum": 0.9}}
"""`adamw` takes 15 GiB for all weights in one process, `sgd` with momentum 12."""
CASES: dict[str, tuple[int, str, bool]] = {
    "one process, all weights": (1, "ddp", True),
    "two processes, fsdp2, all weights": (2, "fsdp2", True),
    "one process, LoRA": (1, "ddp", False),
    "two processes, fsdp2, LoRA": (2, "fsdp2", False),
}
"""For each run: processes, how they share the model, and whether all weights are trained or an adapter."""


def main() -> None:
    """Make the model, train it in each way, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="where 16 GB may be written; a temporary folder")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    options = parser.parse_args()
    if options.run:
        measuring.tell(write_model(options) if options.run == "the model" else imports())
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        measuring.in_a_process("the model", "--folder", name)
        floor = measuring.in_a_process("the imports")
        numbers = {case: trained(folder, case, floor, OPTIMIZERS[options.optimizer]) for case in CASES}
    measuring.publish(numbers, markdown(numbers), options.output)


def write_model(options: argparse.Namespace) -> int:
    """Write a random model with the packaged model's tokenizer, and the rows; the number of its weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(measuring.model_folder(options.model))
    config = LlamaConfig(vocab_size=len(tokenizer), **(TINY if options.short else BILLION))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(options.folder / "base")
    tokenizer.save_pretrained(options.folder / "base")
    rows = [{"prompt": f"How many is {n}?", "completion": f"{n} apples"} for n in range(8)]
    measuring.write_rows(options.folder / "rows.jsonl", rows)
    return sum(each.numel() for each in model.parameters())


def imports() -> int:
    """Bytes in no file of a process that has imported what a run imports."""
    import posttrain.sft.recipe
    import posttrain.train.loop
    import posttrain.train.state  # noqa: F401

    return anonymous_bytes(psutil.Process())


def trained(folder: Path, case: str, floor: int, optimizer: dict[str, Any]) -> dict[str, float]:
    """Train; the peak memory over `floor` of the process that has the most, in bytes, and the seconds of a step."""
    processes, kind, all_weights = CASES[case]
    output = folder / case.replace(" ", "-")
    config = {
        "model": {"name": str(folder / "base"), "backend": "hf", "dtype": "float32"},
        "lora": None if all_weights else measuring.LORA,
        "datasets": {"rows": {"path": str(folder / "rows.jsonl")}},
        "stages": [{"name": "one", "until_step": STEPS, "mix": {"rows": 1}}],
        "training": {"rows_per_step": 2, "micro_batch_size": 1, "compile": False, **optimizer},
        "parallel": {"kind": kind},
        "run": {"output_dir": str(output), "name": "run", "save_every": STEPS},
    }
    file = folder / "run.yaml"
    file.write_text(json.dumps(config))
    launch = ["torchrun", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    words = [*map(measuring.command, launch[:1]), *launch[1:], measuring.command("toolkit-sft"), str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(2 // processes)}
    began = time.perf_counter()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        peak = watched(process)
    if process.returncode:
        raise SystemExit(f"{(folder / 'log').read_text()[-4000:]}\nsharding: {case} failed, see above")
    sys.stderr.write(f"sharding: {case}: {time.perf_counter() - began:.0f} s\n")
    lines = map(json.loads, (output / "run" / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "loss" in line]
    shutil.rmtree(output)
    return {"peak": peak - floor, "seconds": steps[-1]["seconds"], "loss": steps[-1]["loss"]}


def watched(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a command; the most bytes in no file that it or a process below it had."""
    peak = 0
    while process.poll() is None:
        try:
            own = psutil.Process(process.pid)
            peak = max(peak, *(anonymous_bytes(each) for each in (own, *own.children(recursive=True))))
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.01)
    return peak


def anonymous_bytes(process: psutil.Process) -> int:
    """The process's memory that no file backs; 0 if it has just ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def markdown(numbers: dict[str, Any]) -> str:
    """A row for each run, with its share of the memory of one process."""
    rows = []
    for case, found in numbers.items():
        alone = numbers[f"one process, {case.rpartition(', ')[2]}"]
        share = found["peak"] / alone["peak"]
        rows.append(
            [case, f"{found['peak'] / GIB:.1f}", f"{share:.2f}", f"{found['seconds']:.1f}", f"{found['loss']:.4f}"]
        )
    head = ["training", "peak memory of a process, GiB", "of one process's", "seconds per step", "last loss"]
    return measuring.markdown_table(head, rows)


if __name__ == "__main__":
    main()
