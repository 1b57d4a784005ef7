"""Seconds per optimizer step of GRPO, against TRL's own GRPOTrainer, each in a process of its own.

python benchmarks/grpo.py [--steps N] [--completions N] [--tokens N] [--output FILE]

The same model (SmolLM2-135M-Instruct with a LoRA adapter), prompts, lengths and batch. TRL runs as it comes on a CPU
(float32 weights), and tuned (bfloat16 weights, autocast, no gradient checkpointing); its own vLLM mode cannot bring
weights over on a CPU. Prints a Markdown table.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GENERATIONS = 8
MICRO_BATCH = 8
TOPICS = ("a river", "a lighthouse", "a market", "a storm", "a library", "a train", "a garden", "a mountain")


def main() -> None:
    """Measure each, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps, of which the first is left out")
    parser.add_argument("--completions", type=int, default=32, help="completions in one optimizer step")
    parser.add_argument("--tokens", type=int, default=96, help="longest completion")
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the numbers")
    parser.add_argument("--trl", choices=("float32", "bfloat16"), default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: at least 2, of which the first is left out")
    if options.trl:
        sys.stdout.write(json.dumps(train_with_trl(options)) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        numbers = {
            "toolkit, vLLM": train_with_toolkit(options, Path(folder, "vllm"), "vllm"),
            "toolkit, transformers": train_with_toolkit(options, Path(folder, "hf"), "hf"),
            "TRL, tuned": in_a_process(options, "bfloat16"),
            "TRL, float32": in_a_process(options, "float32"),
        }
    sys.stdout.write(markdown(numbers) + "\n")
    if options.output is not None:
        options.output.write_text(json.dumps(numbers, indent=1) + "\n")


def prompts() -> list[str]:
    """Requests for texts that are longer than what is generated."""
    return [f"Write a long story, at least {count} words, about {topic}." for topic in TOPICS for count in (500, 600)]


def train_with_toolkit(options: argparse.Namespace, folder: Path, engine: str) -> dict[str, float]:
    """Medians of what metrics.jsonl says of the steps after the first."""
    folder.mkdir()
    rows = [{"prompt": prompt} for prompt in prompts()]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "data.yaml").write_text(json.dumps(data_config(options)))
    (folder / "grpo.yaml").write_text(json.dumps(config(options, engine)))
    command = [str(Path(sys.executable).with_name("toolkit-rl-train")), str(folder / "grpo.yaml")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "runs" / "grpo" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines][1:]
    seconds = {name: statistics.median(step["seconds"][name] for step in steps) for name in steps[0]["seconds"]}
    return {**seconds, "tokens": statistics.fmean(step["completion_tokens"] for step in steps)}


def config(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Of the trainer; JSON is YAML too."""
    return {
        "model": {"name": "smollm2-135m-instruct"},
        "chat": {"template": "tokenizer"},  # as TRL renders, system message and all
        "dataserver": {"config": "data.yaml"},
        "algorithm": "dr_grpo",
        "rollout": {
            "engine": engine,
            "generations": GENERATIONS,
            "max_new_tokens": options.tokens,
            "max_prompt_tokens": 128,
            "batch_size": options.completions,
        },
        "training": {
            "rows_per_step": options.completions,
            "micro_batch_size": MICRO_BATCH,
            "max_steps": options.steps,
            "learning_rate": 1e-5,
        },
    }


def data_config(options: argparse.Namespace) -> dict[str, Any]:
    """Of the dataserver: a reward that differs between any two completions."""
    return {
        "prompts_per_iteration": options.completions // GENERATIONS,
        "datasets": {"stories": {"path": "prompts.jsonl", "gold": None, "graders": {"repetition": 1}}},
        "stages": [{"name": "all", "until_step": 1000, "mix": {"stories": 1}}],
        "journal": {"enabled": False},
    }


def in_a_process(options: argparse.Namespace, weights: str) -> dict[str, float]:
    """TRL's numbers, from this file run anew."""
    arguments = ["--steps", options.steps, "--completions", options.completions, "--tokens", options.tokens]
    command = [sys.executable, __file__, "--trl", weights, *map(str, arguments)]
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def train_with_trl(options: argparse.Namespace) -> dict[str, float]:
    """As a user of TRL would: a script around GRPOTrainer, with the reward computed in it."""
    from trl import GRPOTrainer

    from toolkit.core.models.gguf import converted_folder
    from toolkit.core.models.location import locate_model

    lengths: list[float] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths.extend(len(ids) for ids in completion_ids)
        return [len(set(ids)) / len(ids) for ids in completion_ids]

    model = converted_folder(Path(locate_model("smollm2-135m-instruct").path))
    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(reward_funcs=reward, **trl_parts(options, model, output))
        seconds = seconds_of_steps(trainer)
        trainer.train()
    return {"all": statistics.median(seconds[1:]), "tokens": statistics.fmean(lengths)}


def trl_parts(options: argparse.Namespace, model: Path, output: str) -> dict[str, Any]:
    """What GRPOTrainer is made of: the same step as the toolkit's."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig

    tuned = options.trl == "bfloat16"
    arguments = GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=tuned,
        gradient_checkpointing=not tuned,
        loss_type="dr_grpo",
        scale_rewards="none",
        num_generations=GENERATIONS,
        max_completion_length=options.tokens,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=options.completions // MICRO_BATCH,
        learning_rate=1e-5,
        max_steps=options.steps,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    return {
        "model": AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, options.trl)),
        "args": arguments,
        "train_dataset": Dataset.from_dict({"prompt": [[{"role": "user", "content": each}] for each in prompts()]}),
        "processing_class": AutoTokenizer.from_pretrained(model),
        "peft_config": LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    }


def seconds_of_steps(trainer: Any) -> list[float]:
    """A list that gets the seconds of each optimizer step as it ends."""
    import time

    from transformers import TrainerCallback

    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.begin)

    trainer.add_callback(Clock())
    return seconds


def markdown(numbers: dict[str, dict[str, float]]) -> str:
    """Seconds per step, where they go, and how many times those of the toolkit."""
    parts = ("generate", "grade", "learn", "sync")
    lines = [f"| | s per step | × | {' | '.join(parts)} | tokens |", "|---|---:|---:|" + "---:|" * (len(parts) + 1)]
    for name, row in numbers.items():
        ratio = row["all"] / numbers["toolkit, vLLM"]["all"]
        cells = [f"{row[part]:.1f}" if part in row else "" for part in parts]
        lines.append(f"| {name} | {row['all']:.1f} | {ratio:.2f} | {' | '.join(cells)} | {row['tokens']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
