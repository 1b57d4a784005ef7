"""Pairs per second of DPO, compared with TRL's own DPOTrainer, each in its own process and on the same pairs.

python benchmarks/dpo.py [ACCEPTED REJECTED] [--steps N] [--pairs N] [--length N] [--times N] [--output FILE]

The two files hold conversations with the better and the worse answers, matched by line; without them, pairs are made
up. All runs train the same LoRA adapter on the same tokens in the same order, so in float32 their losses must agree
step by step; in bfloat16 the sum over a long answer is uncertain by half a nat, and it shows. The toolkit compiles its
layers. TRL runs tuned (bfloat16 weights, autocast, no gradient checkpointing), in the setting that `search.py` found to
be the fastest: 1, 2 or 4 pairs at once, with a precomputed or a live reference, compiled or not. The float32 runs are
only there for their losses: there TRL has gradient checkpointing, which is its default, and a live reference. The other
runs take turns. Prints a Markdown table with the median, lowest and highest of the rounds.
"""

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import conversations
import measuring
import rivals

RATE = 2e-5
LOSS_STEPS = 2
"""Optimizer steps of the float32 runs, which are only there for their losses."""
SPEED = "one_epoch_pairs_per_second"
"""The figure that says how fast a run is."""


def main() -> None:
    """Measure each, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("accepted", type=Path, nargs="?", help="JSONL with the better answers")
    parser.add_argument("rejected", type=Path, nargs="?", help="JSONL with the worse ones, line by line")
    measuring.rounds_option(parser)
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps, of which the first two are left out")
    parser.add_argument("--pairs", type=int, default=4, help="pairs in one optimizer step")
    parser.add_argument("--length", type=int, default=1024, help="longest conversation in tokens; others are dropped")
    options = parser.parse_args()
    if (options.accepted is None) != (options.rejected is None):
        parser.error("give both files, or none")
    if options.short:
        options.steps, options.pairs = 2, 2
    if measuring.is_compiled(options.run):
        options.steps = measuring.COMPILED_STEPS
    if options.run:
        measuring.tell(RUNS[options.run](options))
        return
    measured = [] if options.short else [*OURS, rivals.fastest("dpo")]
    numbers = measuring.in_rounds(measured, CHECKED, times=options.times)
    measuring.publish(numbers, markdown(numbers), options.output)


def steps_of(options: argparse.Namespace) -> int:
    """Optimizer steps of the current run."""
    return min(options.steps, LOSS_STEPS) if "float32" in options.run else options.steps


def config(options: argparse.Namespace, folder: Path, reference: str, dtype: str) -> Any:
    """The toolkit's config, written to a file and loaded from it; it uses only as many pairs as it trains."""
    from posttrain.config.load import load_config
    from posttrain.dpo.config.dpo import DPOConfig

    accepted, rejected = files(options, folder)
    written = {
        "model": {"name": options.model, "backend": "hf", "dtype": dtype},
        "lora": measuring.LORA,
        "chat": {"max_length": options.length},
        "method": {"type": "dpo", "beta": 0.1},
        "reference": {"type": reference},
        "datasets": {
            "pairs": {"accepted": str(accepted), "rejected": str(rejected)}
            | {"n_samples": steps_of(options) * options.pairs}
        },
        "stages": [{"name": "all", "until_step": steps_of(options), "mix": {"pairs": 1}}],
        "training": {
            "rows_per_step": options.pairs,
            "micro_batch_size": options.pairs,
            "learning_rate": RATE,
            "schedule": "constant",
            "compile": not options.short,  # `auto` would not compile for so few pairs
        },
    }
    return load_config(measuring.write_config(folder / "dpo.yaml", written), DPOConfig)


def files(options: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """The files with the better and the worse answers."""
    if options.accepted is not None:
        return options.accepted.absolute(), options.rejected.absolute()
    better, worse = conversations.pairs(options.steps * options.pairs, short=options.short)
    return measuring.write_rows(folder / "better.jsonl", better), measuring.write_rows(folder / "worse.jsonl", worse)


def prepared(settings: Any) -> tuple[Any, Any]:
    """The toolkit's data and tokenizer."""
    from posttrain.dpo.data import prepare_data
    from posttrain.models.load import choose_backend

    tokenizer = choose_backend(settings.model).load_tokenizer(settings.model, chatml=True)
    return prepare_data(settings, tokenizer, lambda line: None), tokenizer


def train_with_toolkit(options: argparse.Namespace, reference: str, dtype: str = "auto") -> dict[str, Any]:
    """The toolkit's numbers; the reference cache starts empty."""
    from posttrain.dpo.recipe import DPORecipe
    from posttrain.dpo.train import open_session
    from posttrain.runs.directory import RunDirectory
    from posttrain.runs.metrics import read_metrics
    from posttrain.runs.resume import ResumePoint, RunCounters
    from posttrain.train.parallel.ranks import connect

    with tempfile.TemporaryDirectory() as name:
        settings = config(options, Path(name), reference, dtype)
        run, start = RunDirectory(Path(name, "run")), ResumePoint(None, RunCounters())
        session, data = open_session(settings, run)
        with session.model(start, resume=False) as loaded:
            os.environ["POSTTRAIN_TOOLKIT_CACHE"] = name
            accelerator = connect()
            began = time.perf_counter()
            recipe = DPORecipe(settings, data, loaded, accelerator)
            before = time.perf_counter() - began
            session.train(recipe, accelerator, loaded, start)
        steps = read_metrics(run.metrics)
    seconds, losses = ([step[name] for step in steps] for name in ("seconds", "loss"))
    return numbers_of(options, seconds, losses, before / len(data.datasets["pairs"]))


def train_with_trl(
    options: argparse.Namespace, weights: str, precomputed: bool = False, at_once: int | None = None
) -> dict[str, Any]:
    """TRL's numbers on the toolkit's tokens in the toolkit's order; TRL's own data preparation is skipped.

    `at_once`: pairs per forward pass; None takes all pairs of a step.
    """
    from datasets import Dataset
    from trl import DPOTrainer

    class PreparedDPOTrainer(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *arguments: Any, **keywords: Any) -> Any:
            return dataset

    with tempfile.TemporaryDirectory() as name:
        settings = config(options, Path(name), "cached", "float32")
        data, tokenizer = prepared(settings)
        rows = [row for step in range(steps_of(options)) for row in rows_of_step(data, step)]
        model = measuring.adapted_model(settings, weights)
        began = time.perf_counter()
        trainer = PreparedDPOTrainer(
            model=model,
            args=trl_arguments(options, name, weights == "bfloat16", precomputed, at_once or options.pairs),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
        )
        before = time.perf_counter() - began
        seconds = measuring.seconds_of_steps(trainer, options.run)
        trainer.train()
        return numbers_of(options, seconds, measuring.losses_of(trainer), before / len(rows) if precomputed else 0.0)


def rows_of_step(data: Any, step: int) -> list[dict[str, list[int]]]:
    """The pairs of an optimizer step, as TRL's collator expects them."""
    dataset, rows = data.datasets["pairs"], []
    for draw in data.curriculum.step(step):
        (ids, trained), (others, others_trained) = dataset.chosen.row(draw.row), dataset.rejected.row(draw.row)
        prompt, end, others_end = (int(place) for place in (trained.argmax(), last(trained), last(others_trained)))
        answers = {"chosen_ids": ids[prompt:end].tolist(), "rejected_ids": others[prompt:others_end].tolist()}
        rows.append({"prompt_ids": ids[:prompt].tolist(), **answers})
    return rows


def last(trained: Any) -> int:
    """The position after the last trained token."""
    return int(trained.nonzero()[0][-1]) + 1


def trl_arguments(options: argparse.Namespace, output: str, tuned: bool, precomputed: bool, at_once: int) -> Any:
    """TRL's arguments for the same step as the toolkit's."""
    from trl import DPOConfig

    return DPOConfig(
        **measuring.trl_arguments(output, steps_of(options), RATE, options.run),
        bf16=tuned,
        gradient_checkpointing=not tuned,
        precompute_ref_log_probs=precomputed,
        loss_type=["sigmoid"],
        beta=0.1,
        max_length=None,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=options.pairs // at_once,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
    )


def numbers_of(options: argparse.Namespace, seconds: list[float], losses: list[float], before: float) -> dict[str, Any]:
    """`before`: seconds per pair that the reference took before training, counted once."""
    step = measuring.median_after_warm_up(seconds)
    return {
        "pairs_per_second": options.pairs / step,
        "reference_seconds_per_pair": before,
        "one_epoch_pairs_per_second": 1 / (step / options.pairs + before),
        "losses": losses,
    }


OURS = {
    "toolkit, cached": partial(train_with_toolkit, reference="cached"),
    "toolkit, live": partial(train_with_toolkit, reference="live"),
}
RIVALS = {
    f"TRL {version}, {reference}, {at_once} at once{compiled}": partial(
        train_with_trl, weights="bfloat16", precomputed=reference == "precomputed", at_once=at_once
    )
    for version in rivals.VERSIONS
    for reference in ("precomputed", "live")
    for at_once, compiled in ((4, ""), (2, ""), (1, ""), (4, ", compiled"))
}
"""What `search.py` tries."""
CHECKED = {
    "toolkit, float32, cached": partial(train_with_toolkit, reference="cached", dtype="float32"),
    "TRL, float32": partial(train_with_trl, weights="float32"),
}
"""The runs whose losses must agree."""
RUNS = {**OURS, **RIVALS, **CHECKED}


def markdown(numbers: dict[str, Any]) -> str:
    """A row for each run."""
    rows = []
    for run, rounds in measuring.by_run(numbers).items():
        speeds = [measuring.spread([each[name] for each in rounds], 2) for name in list(rounds[0])[:3]]
        rows.append([run, *speeds, " ".join(f"{loss:.4f}" for loss in rounds[0]["losses"])])
    head = ["DPO", "pairs/s", "reference beforehand, s/pair", "pairs/s over one epoch", "loss of each step"]
    return measuring.markdown_table(head, rows)


if __name__ == "__main__":
    main()
