"""Tokens per second of SFT, compared with TRL's own SFTTrainer, each in its own process and on the same rows.

python benchmarks/sft.py [--steps N] [--rows N] [--times N] [--data FILE] [--output FILE]

All runs train the same LoRA adapter from the same start on the same tokens in the same order, so in float32 their
losses must agree step by step. The toolkit compiles its layers and takes 8 rows at once. TRL runs tuned (bfloat16
weights, autocast, no checkpointing, the loss in chunks over the labelled tokens), in the setting that `search.py` found
to be the fastest: 4, 8 or 16 rows at once, its model compiled or not. TRL gets the toolkit's tokens, so its own data
preparation is left out. A row's tokens count once, and padding does not count. The two take turns.
Prints a Markdown table with the median, lowest and highest of the rounds.
"""

import argparse
import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import conversations
import measuring
import rivals

RATE = 2e-4
LOSS_STEPS = 2
"""Optimizer steps of the float32 runs, which are only there for their losses."""
SPEED = "tokens_per_second"
"""The figure that says how fast a run is."""


@dataclass(frozen=True)
class TrlWay:
    """How TRL trains: dtype of the frozen weights, and rows per forward pass; None takes all rows of a step."""

    weights: str
    autocast: bool
    checkpointing: bool
    at_once: int | None


TUNED = TrlWay("bfloat16", autocast=True, checkpointing=False, at_once=None)


def main() -> None:
    """Measure each, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    measuring.rounds_option(parser)
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps, of which the first two are left out")
    parser.add_argument("--rows", type=int, default=16, help="rows in one optimizer step")
    parser.add_argument("--data", type=Path, default=None, help="JSONL with messages, in place of generated rows")
    options = parser.parse_args()
    if options.short:
        options.steps, options.rows = 2, 4
    if measuring.is_compiled(options.run):
        options.steps = measuring.COMPILED_STEPS
    if options.run:
        measuring.tell(RUNS[options.run](options))
        return
    measured = [] if options.short else ["toolkit", rivals.fastest("sft")]
    numbers = measuring.in_rounds(measured, CHECKED, times=options.times)
    measuring.publish(numbers, markdown(numbers), options.output)


def steps_of(options: argparse.Namespace) -> int:
    """Optimizer steps of the current run."""
    return min(options.steps, LOSS_STEPS) if "float32" in options.run else options.steps


def config(options: argparse.Namespace, folder: Path, dtype: str) -> Any:
    """The toolkit's config, written to a file and loaded from it."""
    from posttrain.config.load import load_config
    from posttrain.sft.config import SFTConfig

    rows = conversations.problems(options.steps * options.rows, short=options.short)
    data = options.data or measuring.write_rows(folder / "rows.jsonl", rows)
    written = {
        "model": {"name": options.model, "backend": "hf", "dtype": dtype},
        "lora": measuring.LORA,
        "datasets": {"rows": {"path": str(data.absolute())}},
        "stages": [{"name": "all", "until_step": steps_of(options), "mix": {"rows": 1}}],
        "training": {
            "rows_per_step": options.rows,
            "micro_batch_size": min(options.rows, 8),
            "learning_rate": RATE,
            "schedule": "constant",
            "compile": not options.short,  # `auto` would not compile for so few rows
        },
    }
    return load_config(measuring.write_config(folder / "sft.yaml", written), SFTConfig)


def train_with_toolkit(options: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Train as `toolkit-sft` does; the numbers come from its metrics.jsonl."""
    from posttrain.runs.metrics import read_metrics
    from posttrain.sft.train import train

    with tempfile.TemporaryDirectory() as name:
        train(config(options, Path(name), dtype), "run")
        steps = read_metrics(Path(name, "runs", "run", "metrics.jsonl"))
    return {
        "tokens_per_second": measuring.median_after_warm_up([step["tokens"] / step["seconds"] for step in steps]),
        "losses": [step["loss"] for step in steps],
    }


def train_with_trl(options: argparse.Namespace, way: TrlWay) -> dict[str, Any]:
    """TRL's own trainer, collator and loss."""
    from datasets import Dataset
    from trl import SFTTrainer

    with tempfile.TemporaryDirectory() as name:
        settings = config(options, Path(name), "float32")
        rows, tokenizer = tokenised_rows(settings)
        trainer = SFTTrainer(
            model=measuring.adapted_model(settings, way.weights),
            args=trl_arguments(options, way, name),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
        )
        seconds = measuring.seconds_of_steps(trainer, options.run)
        trainer.train()
    lengths = [len(row["input_ids"]) for row in rows]
    tokens = [sum(lengths[first : first + options.rows]) for first in range(0, len(lengths), options.rows)]
    speeds = [count / taken for count, taken in zip(tokens, seconds, strict=not measuring.is_compiled(options.run))]
    return {
        "tokens_per_second": measuring.median_after_warm_up(speeds),
        "losses": measuring.losses_of(trainer),
    }


def tokenised_rows(settings: Any) -> tuple[list[dict[str, list[int]]], Any]:
    """The toolkit's rows in the toolkit's order, as TRL's collator expects them, and the tokenizer."""
    from posttrain.models.load import choose_backend
    from posttrain.sft.data import prepare_data

    tokenizer = choose_backend(settings.model).load_tokenizer(settings.model, chatml=True)
    data = prepare_data(settings, tokenizer, lambda line: None)
    rows = []
    for step in range(data.max_steps):
        for draw in data.curriculum.step(step):
            ids, trained = (part.tolist() for part in data.datasets[draw.dataset].row(draw.row))
            labels = [token if flag else -100 for token, flag in zip(ids, trained, strict=True)]
            rows.append({"input_ids": ids, "labels": labels})
    return rows, tokenizer


def trl_arguments(options: argparse.Namespace, way: TrlWay, output: str) -> Any:
    """The same step as the toolkit's; TRL computes the loss in chunks over the labelled tokens."""
    from trl import SFTConfig

    at_once = min(way.at_once or options.rows, options.rows)
    return SFTConfig(
        **measuring.trl_arguments(output, steps_of(options), RATE, options.run),
        bf16=way.autocast,
        gradient_checkpointing=way.checkpointing,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=options.rows // at_once,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )


RIVALS = {
    f"TRL {version}, {name}": partial(train_with_trl, way=way)
    for version in rivals.VERSIONS
    for name, way in {
        "4 at once": replace(TUNED, at_once=4),
        "8 at once": replace(TUNED, at_once=8),
        "16 at once": replace(TUNED, at_once=16),
        "8 at once, compiled": replace(TUNED, at_once=8),
    }.items()
}
"""What `search.py` tries; TRL recompiles for most widths of a batch."""
FLOAT32 = TrlWay("float32", autocast=False, checkpointing=False, at_once=None)
CHECKED = {
    "toolkit, float32": partial(train_with_toolkit, dtype="float32"),
    "TRL, float32": partial(train_with_trl, way=FLOAT32),
}
"""The runs whose losses must agree."""
RUNS = {"toolkit": partial(train_with_toolkit, dtype="auto"), **RIVALS, **CHECKED}


def markdown(numbers: dict[str, Any]) -> str:
    """A row for each run; its losses are compared with the toolkit's in the same precision."""
    found, rows = measuring.by_run(numbers), []
    for run, rounds in found.items():
        ours = found["toolkit, float32" if "float32" in run else "toolkit"]
        steps = min(len(rounds[0]["losses"]), len(ours[0]["losses"]))
        difference = measuring.biggest_difference(rounds[0]["losses"][:steps], ours[0]["losses"][:steps])
        speeds, our_speeds = ([each["tokens_per_second"] for each in side] for side in (rounds, ours))
        ratio = statistics.median(our_speeds) / statistics.median(speeds)
        losses = " ".join(f"{loss:.4f}" for loss in rounds[0]["losses"])
        rows.append([run, measuring.spread(speeds), f"{ratio:.2f}", f"{difference:.1e}", losses])
    head = ["SFT", "tokens/s", "toolkit, times as fast", "biggest difference of the losses", "loss of each step"]
    return measuring.markdown_table(head, rows)


if __name__ == "__main__":
    main()
