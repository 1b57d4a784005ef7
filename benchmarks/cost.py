"""How the cost of SFT grows with length, batch size and rank, and how far off the `--dry-run` estimate is.

python benchmarks/cost.py [--short] [--only WORD] [--steps N] [--output FILE]

Each case trains in its own process, as `toolkit-sft` does, on rows of one length; another process first computes the
dry run's estimate for the same config. The models are the packaged one and a wider one with random weights, 8 layers
of 1,024. Seconds are the median of the optimizer steps after the first two. Memory is the peak of the process; the
memory constants in `posttrain.train.cost.estimate` are fitted to it. Prints a Markdown table.
"""

import argparse
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import measuring

GIB = 2**30
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Case:
    """What is trained; each step is one micro-batch."""

    tokens: int = 256
    rows: int = 4
    rank: int | None = 16
    wide: bool = False
    dtype: str = "auto"
    checkpointing: bool = False
    compiled: bool = False

    def words(self) -> str:
        """The case's label: batch, rank, and what differs from the defaults."""
        parts = [f"{self.rows} × {self.tokens}", f"rank {self.rank}" if self.rank else "all weights"]
        parts += ["8 × 1,024"] * self.wide + ["float32"] * (self.dtype != "auto")
        return ", ".join(parts + ["checkpointing"] * self.checkpointing + ["compiled"] * self.compiled)


CASES = [
    Case(tokens=64),
    Case(),
    Case(tokens=512),
    Case(tokens=1024),
    Case(tokens=2048, rows=1),
    Case(rows=1),
    Case(rows=16),
    Case(rank=4),
    Case(rank=64),
    Case(rank=256),
    Case(checkpointing=True),
    Case(compiled=True),
    Case(dtype="float32"),
    Case(rank=None),
    Case(wide=True),
    Case(tokens=1024, wide=True),
    Case(rank=None, wide=True),
]
BY_WORDS = {case.words(): case for case in CASES}


def main() -> None:
    """Measure each case, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--only", default="", help="a part of the names of the cases to take")
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps, of which the first two are left out")
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        task, _, words = options.run.partition(": ")
        measuring.tell({"estimate": estimated, "train": trained}[task](options, BY_WORDS[words]))
        return
    names = [words for words in BY_WORDS if options.only in words]
    if options.short:
        options.steps, names = 2, names[:1]
    with tempfile.TemporaryDirectory() as folder:
        if any(BY_WORDS[words].wide for words in names):
            make_wide_model(options.model, Path(folder))
        numbers = {words: measure(words, folder, options.steps) for words in names}
    measuring.publish(numbers, markdown(numbers), options.output)


def measure(words: str, folder: str, steps: int) -> dict[str, Any]:
    """The estimate for a case, and what its training takes."""
    tasks = (f"{task}: {words}" for task in ("estimate", "train"))
    said, found = measuring.in_processes(tasks, "--folder", folder, "--steps", str(steps)).values()
    return {"case": asdict(BY_WORDS[words]), "said": said, "found": found}


def config(options: argparse.Namespace, case: Case, folder: Path) -> Any:
    """The config of a run on rows of the case's length, give or take a few tokens."""
    from posttrain.config.load import load_config
    from posttrain.sft.config import SFTConfig

    # Half of each row is the prompt; ChatML adds a dozen tokens.
    texts = [" ".join(WORDS[(row + at) % 10] for at in range(case.tokens // 2 - 8)) for row in range(case.rows)]
    rows = [{"prompt": text, "completion": text} for text in texts]
    written = {
        "model": {"name": str(options.folder / "wide") if case.wide else options.model, "dtype": case.dtype},
        "lora": None if case.rank is None else {"r": case.rank, "alpha": 2 * case.rank},
        "chat": {"max_length": 4096},
        "datasets": {"rows": {"path": str(measuring.write_rows(folder / "rows.jsonl", rows))}},
        "stages": [{"name": "all", "until_step": options.steps, "mix": {"rows": 1}}],
        "training": {
            "rows_per_step": case.rows,
            "micro_batch_size": case.rows,
            "gradient_checkpointing": case.checkpointing,
            "compile": case.compiled,
            "learning_rate": 1e-5,
        },
    }
    return load_config(measuring.write_config(folder / "sft.yaml", written), SFTConfig)


def estimated(options: argparse.Namespace, case: Case) -> dict[str, Any]:
    """What the dry run estimates."""
    from posttrain.models.load import choose_backend
    from posttrain.sft.data import prepare_data
    from posttrain.sft.plan import estimated as estimate_of

    with tempfile.TemporaryDirectory() as name:
        settings = config(options, case, Path(name))
        tokenizer = choose_backend(settings.model).load_tokenizer(settings.model, chatml=True)
        data = prepare_data(settings, tokenizer, lambda line: None)
        began = time.perf_counter()
        found = estimate_of(settings, data)
    return {"seconds": found.seconds[-1], "bytes": found.bytes, "took": time.perf_counter() - began}


def trained(options: argparse.Namespace, case: Case) -> dict[str, Any]:
    """What `toolkit-sft` takes, from its metrics and Linux's count of its memory."""
    from posttrain.runs.metrics import read_metrics
    from posttrain.sft.train import train

    with tempfile.TemporaryDirectory() as name:
        train(config(options, case, Path(name)), "run")
        steps = read_metrics(Path(name, "runs", "run", "metrics.jsonl"))
    seconds = [step["seconds"] for step in steps]
    return {
        "seconds": measuring.median_after_warm_up(seconds),
        "shortest": min(seconds),
        "tokens": steps[0]["tokens"],
        "bytes": int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024,
    }


def make_wide_model(model: str, folder: Path) -> None:
    """Write the wider model, with the tokenizer of `model`."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(measuring.model_folder(model))
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model_of_shape: Any = LlamaForCausalLM(shape)
    model_of_shape.to(torch.bfloat16).save_pretrained(folder / "wide")
    tokenizer.save_pretrained(folder / "wide")


def markdown(numbers: dict[str, Any]) -> str:
    """A row for each case: measured, estimated, and the relative error."""
    rows = []
    for words, each in numbers.items():
        said, found = each["said"], each["found"]
        rows.append(
            [
                words,
                f"{found['seconds']:.2f}",
                f"{said['seconds']:.2f}",
                f"{said['seconds'] / found['seconds'] - 1:+.0%}",
                f"{found['bytes'] / GIB:.2f}",
                f"{said['bytes'] / GIB:.2f}",
                f"{said['bytes'] / found['bytes'] - 1:+.0%}",
            ]
        )
    head = ["rows × tokens", "s per step", "estimate", "", "peak GiB", "estimate", ""]
    return measuring.markdown_table(head, rows)


if __name__ == "__main__":
    main()
