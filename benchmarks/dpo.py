"""Pairs per second of DPO, against TRL's own DPOTrainer, each in a process of its own and on the same pairs.

python benchmarks/dpo.py ACCEPTED REJECTED [--steps N] [--pairs N] [--length N] [--output FILE]

The two files hold conversations, line by line with the better and the worse answer. All train SmolLM2-135M-Instruct
with the same LoRA adapter on the same tokens in the same order, so that in float32 their losses must agree step by
step; in bfloat16 the sum over a long answer is uncertain by half a nat, which shows. TRL runs as it comes on a CPU
(float32 weights), tuned (bfloat16 weights, autocast, no gradient checkpointing), and tuned with its reference computed
beforehand. Prints a Markdown table.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = "smollm2-135m-instruct"
LORA = {"r": 16, "alpha": 32}
RATE = 2e-5
RUNS = (
    "toolkit, cached",
    "toolkit, live",
    "toolkit, float32, cached",
    "TRL, tuned, precomputed",
    "TRL, tuned",
    "TRL, float32",
)


def main() -> None:
    """Measure each, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("accepted", type=Path, help="JSONL with the better answers")
    parser.add_argument("rejected", type=Path, help="JSONL with the worse ones, line by line")
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps, of which the first is left out")
    parser.add_argument("--pairs", type=int, default=4, help="pairs in one optimizer step")
    parser.add_argument("--length", type=int, default=1024, help="longest conversation in tokens; others are dropped")
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the numbers")
    parser.add_argument("--run", choices=RUNS, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: at least 2, of which the first is left out")
    if options.run:
        train = train_with_toolkit if options.run.startswith("toolkit") else train_with_trl
        sys.stdout.write(json.dumps(train(options)) + "\n")
        return
    numbers = {run: in_a_process(options, run) for run in RUNS}
    sys.stdout.write(markdown(numbers) + "\n")
    if options.output is not None:
        options.output.write_text(json.dumps(numbers, indent=1) + "\n")


def in_a_process(options: argparse.Namespace, run: str) -> dict[str, Any]:
    """The numbers of one run, from this file run anew with an empty cache for the reference."""
    arguments = [options.accepted, options.rejected, "--steps", options.steps, "--pairs", options.pairs]
    command = [sys.executable, __file__, *map(str, arguments), "--length", str(options.length), "--run", run]
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def config(options: argparse.Namespace, reference: str) -> dict[str, Any]:
    """Of the toolkit; the data are as many pairs as are trained."""
    return {
        "model": {"name": MODEL, "dtype": "float32" if "float32" in options.run else "auto"},
        "lora": LORA,
        "chat": {"max_length": options.length},
        "method": {"type": "dpo", "beta": 0.1},
        "reference": {"type": reference},
        "datasets": {
            "pairs": {"accepted": {"path": str(options.accepted)}, "rejected": {"path": str(options.rejected)}}
            | {"n_samples": 2 * options.steps * options.pairs}
        },
        "stages": [{"name": "all", "until_step": options.steps, "mix": {"pairs": 1}}],
        "training": {
            "rows_per_step": options.pairs,
            "micro_batch_size": options.pairs,
            "learning_rate": RATE,
            "schedule": "constant",
        },
    }


def parts(options: argparse.Namespace, folder: Path, reference: str) -> tuple[Any, Any, Any]:
    """Config, data and tokenizer of the toolkit."""
    from toolkit.core.config.load import load_config
    from toolkit.core.models.load import choose_backend
    from toolkit.dpo.config.dpo import DPOConfig
    from toolkit.dpo.data import prepare_data

    (folder / "dpo.yaml").write_text(json.dumps(config(options, reference)))  # JSON is YAML too
    settings = load_config(folder / "dpo.yaml", DPOConfig)
    tokenizer = choose_backend(settings.model).load_tokenizer(settings.model, chatml=True)
    return settings, prepare_data(settings, tokenizer, lambda line: None), tokenizer


def train_with_toolkit(options: argparse.Namespace) -> dict[str, Any]:
    """The toolkit's numbers; the reference's cache starts empty."""
    from toolkit.core.models.base import TrainingSettings
    from toolkit.core.models.load import choose_backend
    from toolkit.core.runs.counters import RunCounters
    from toolkit.core.runs.directory import RunDirectory
    from toolkit.dpo.build import build_trainer

    with tempfile.TemporaryDirectory() as name:
        settings, data, _ = parts(options, Path(name), options.run.split()[-1])
        backend = choose_backend(settings.model)
        loaded = backend.load_for_training(
            settings.model,
            settings.lora,
            settings=TrainingSettings(
                chatml=True, max_length=options.length, gradient_checkpointing=False, seed=settings.training.seed
            ),
        )
        os.environ["POSTTRAIN_TOOLKIT_CACHE"] = name
        run = RunDirectory(Path(name, "run"))
        run.path.mkdir()
        began = time.perf_counter()
        trainer = build_trainer(settings, data, loaded, run, RunCounters())
        before = time.perf_counter() - began
        seconds = seconds_of_steps(trainer)
        trainer.train()
        return numbers_of(options, trainer, seconds, before / len(data.datasets["pairs"]))


def train_with_trl(options: argparse.Namespace) -> dict[str, Any]:
    """TRL's numbers, on the toolkit's tokens in the toolkit's order: its own preparation is left out."""
    from datasets import Dataset
    from trl import DPOTrainer

    class PreparedDPOTrainer(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *arguments: Any, **keywords: Any) -> Any:
            return dataset

    with tempfile.TemporaryDirectory() as name:
        settings, data, tokenizer = parts(options, Path(name), "cached")
        rows = [row for step in range(options.steps) for row in rows_of_step(data, step)]
        began = time.perf_counter()
        trainer = PreparedDPOTrainer(
            model=trl_model(options, settings),
            args=trl_arguments(options, name),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
        )
        before = time.perf_counter() - began
        seconds = seconds_of_steps(trainer)
        trainer.train()
        return numbers_of(options, trainer, seconds, before / len(rows) if "precomputed" in options.run else 0.0)


def rows_of_step(data: Any, step: int) -> list[dict[str, list[int]]]:
    """The pairs of an optimizer step, as TRL's collator takes them."""
    dataset, rows = data.datasets["pairs"], []
    for draw in data.curriculum.step(step):
        (ids, trained), (others, others_trained) = dataset.chosen.row(draw.row), dataset.rejected.row(draw.row)
        prompt, end, others_end = (int(place) for place in (trained.argmax(), last(trained), last(others_trained)))
        answers = {"chosen_ids": ids[prompt:end].tolist(), "rejected_ids": others[prompt:others_end].tolist()}
        rows.append({"prompt_ids": ids[:prompt].tolist(), **answers})
    return rows


def last(trained: Any) -> int:
    """Where the last trained token ends."""
    return int(trained.nonzero()[0][-1]) + 1


def trl_model(options: argparse.Namespace, settings: Any) -> Any:
    """The base with an adapter of the same shape and start as the toolkit's."""
    import torch
    from transformers import AutoModelForCausalLM

    from toolkit.core.models.hf import model_files
    from toolkit.core.models.lora import add_adapter

    dtype = torch.bfloat16 if "tuned" in options.run else torch.float32
    base = AutoModelForCausalLM.from_pretrained(model_files(settings.model), dtype=dtype)
    return add_adapter(base, settings.lora, (), settings.training.seed)


def trl_arguments(options: argparse.Namespace, output: str) -> Any:
    """The same step as the toolkit's."""
    import torch
    from trl import DPOConfig

    tuned = "tuned" in options.run
    return DPOConfig(
        output_dir=output,
        use_cpu=not torch.cuda.is_available(),
        bf16=tuned,
        gradient_checkpointing=not tuned,
        precompute_ref_log_probs="precomputed" in options.run,
        loss_type=["sigmoid"],
        beta=0.1,
        max_length=None,
        max_steps=options.steps,
        per_device_train_batch_size=options.pairs,
        gradient_accumulation_steps=1,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def seconds_of_steps(trainer: Any) -> list[float]:
    """A list that training fills with the seconds of each optimizer step."""
    from transformers import TrainerCallback

    seconds: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *arguments: Any, **keywords: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    trainer.add_callback(Clock())
    return seconds


def numbers_of(options: argparse.Namespace, trainer: Any, seconds: list[float], before: float) -> dict[str, Any]:
    """`before`: seconds per pair that the reference took before training, which are counted once."""
    step = statistics.median(seconds[1:])
    return {
        "pairs_per_second": options.pairs / step,
        "reference_seconds_per_pair": before,
        "one_epoch_pairs_per_second": 1 / (step / options.pairs + before),
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
    }


def markdown(numbers: dict[str, dict[str, Any]]) -> str:
    """A row for each run."""
    lines = [
        "| | pairs/s | reference beforehand, s/pair | pairs/s over one epoch | loss of each step |",
        "|---|---|---|---|---|",
    ]
    for run, found in numbers.items():
        losses = " ".join(f"{loss:.4f}" for loss in found["losses"])
        lines.append(
            f"| {run} | {found['pairs_per_second']:.2f} | {found['reference_seconds_per_pair']:.2f} | "
            f"{found['one_epoch_pairs_per_second']:.2f} | {losses} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
