"""Memory and time of toolkit-merge, compared with PEFT's merge_and_unload and save_pretrained, in separate processes.

python benchmarks/merge.py [--folder DIR] [--output FILE]

The model has about a billion random bfloat16 parameters in files of 300 MB, and a LoRA adapter on every linear layer.
Memory is the process's peak above its imports, including the pages of mapped files, and separately the part that no
file backs. Neither side loads the merged model to check it; instead, the benchmark compares the weights that both
wrote. Prints a Markdown table.
"""

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import measuring

BILLION: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 20,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GIB = 2**30


def main() -> None:
    """Make the model, merge it twice, compare, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="where 7 GB may be written; a temporary folder")
    parser.add_argument("--times", type=int, default=3, help="merges by each side, of which the medians count")
    options = parser.parse_args()
    options.times = 1 if options.short else options.times
    if options.run:
        measuring.tell(RUNS[options.run](options))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = ("--folder", name)
        measuring.in_a_process("the model", *folder)
        # In turns, so that a busy machine slows both alike.
        rounds = [measuring.in_processes(("toolkit", "PEFT"), *folder) for _ in range(options.times)]
        numbers: dict[str, Any] = {side: medians([each[side] for each in rounds]) for side in rounds[0]}
        numbers["difference"] = measuring.in_a_process("the difference", *folder)
    measuring.publish(numbers, markdown(numbers), options.output)


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def write_model(options: argparse.Namespace) -> None:
    """Write a random base in several files, with the packaged model's tokenizer, and an adapter that changes it."""
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(measuring.model_folder(options.model))
    config = LlamaConfig(vocab_size=len(tokenizer), **(TINY if options.short else BILLION))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(options.folder / "base", max_shard_size=file_size(options))
    tokenizer.save_pretrained(options.folder / "base")
    adapted: Any = get_peft_model(model, measuring.peft_lora())
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    adapted.save_pretrained(str(options.folder / "adapter"))


def file_size(options: argparse.Namespace) -> str:
    """The maximum size of a model's files."""
    return "100KB" if options.short else "300MB"


def merge_with_toolkit(options: argparse.Namespace) -> dict[str, float]:
    """Merge as `toolkit-merge --no-verify` does."""
    from posttrain.config.sections.chat import ChatConfig
    from posttrain.config.sections.model import ModelConfig
    from posttrain.merge.merge import merge_adapter

    base = ModelConfig(name=str(options.folder / "base"), backend="hf")
    output = options.folder / "toolkit"
    shutil.rmtree(output, ignore_errors=True)
    with cost() as numbers:
        merge_adapter(base, options.folder / "adapter", output, chat=ChatConfig())
    return numbers


def merge_with_peft(options: argparse.Namespace) -> dict[str, float]:
    """Merge as PEFT's documentation does."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, output = str(options.folder / "base"), str(options.folder / "PEFT")
    shutil.rmtree(output, ignore_errors=True)
    with cost() as numbers:
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), options.folder / "adapter")
        model.merge_and_unload().save_pretrained(output, max_shard_size=file_size(options))
        AutoTokenizer.from_pretrained(base).save_pretrained(output)
    return numbers


@contextmanager
def cost() -> Iterator[dict[str, float]]:
    """A dictionary that gets the seconds of the block and its memory in bytes.

    Peak memory is the kernel's figure for this process; `getrusage` would count the process that started it.
    """
    numbers: dict[str, float] = {}
    floor, anonymous = memory("VmHWM"), memory("RssAnon")
    seen = [anonymous]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            seen[0] = max(seen[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    try:
        yield numbers
    finally:
        numbers["seconds"] = time.perf_counter() - began
        done.set()
        watcher.join()
        numbers["peak"] = memory("VmHWM") - floor
        numbers["anonymous"] = seen[0] - anonymous


def memory(key: str) -> int:
    """Bytes from /proc/self/status: VmHWM is the peak, RssAnon the memory that no file backs."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024


def difference(options: argparse.Namespace) -> float:
    """The biggest difference between the weights that both wrote, as a share of the tensor's biggest weight.

    The two may round differently, by one step of bfloat16.
    """
    ours, theirs = stored_weights(options.folder / "toolkit"), stored_weights(options.folder / "PEFT")
    if ours.keys() != theirs.keys():
        raise SystemExit(f"tensors that only one of them wrote: {sorted(ours.keys() ^ theirs.keys())}")
    return max(relative_difference(ours[name](), theirs[name]()) for name in ours)


def stored_weights(folder: Path) -> dict[str, Any]:
    """For each tensor, by name, a function that reads it."""
    from safetensors import safe_open

    files = [safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))]
    return {name: partial(file.get_tensor, name) for file in files for name in file.keys()}  # noqa: SIM118


def relative_difference(one: Any, other: Any) -> float:
    """The biggest difference between two tensors, over the biggest entry."""
    return float((one.float() - other.float()).abs().max() / one.float().abs().max())


RUNS = {
    "the model": write_model,
    "toolkit": merge_with_toolkit,
    "PEFT": merge_with_peft,
    "the difference": difference,
}


def markdown(numbers: dict[str, Any]) -> str:
    """A row for each side."""
    rows = [
        [
            run,
            f"{numbers[run]['peak'] / GIB:.2f}",
            f"{numbers[run]['anonymous'] / GIB:.2f}",
            f"{numbers[run]['seconds']:.1f}",
        ]
        for run in ("toolkit", "PEFT")
    ]
    head = ["merge", "peak above the imports, GiB", "of it in no file, GiB", "seconds"]
    apart = f"Weights differ by at most {numbers['difference']:.1e} of the biggest weight of their tensor."
    return f"{measuring.markdown_table(head, rows)}\n\n{apart}"


if __name__ == "__main__":
    main()
