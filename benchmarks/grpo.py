"""Seconds per optimizer step of GRPO, compared with TRL's own GRPOTrainer, each in its own process.

python benchmarks/grpo.py [--steps N] [--completions N] [--tokens N] [--times N] [--output FILE]

All use the same model with a LoRA adapter, prompts, lengths and batch, and the same reward, drawn at random from a
completion's text, so that the completions of a group differ in it. The toolkit compiles the layers that it trains, and
generates with vLLM, which is compiled too, or with transformers. TRL runs tuned (bfloat16 weights, autocast, no
gradient checkpointing), in the setting that `search.py` found to be the fastest, and generates with transformers: its
own vLLM mode cannot transfer weights on a CPU. The like-for-like comparison is the toolkit with transformers against
TRL. Each samples its own completions, so losses are not compared. The runs take turns. Prints a Markdown table with the
median, lowest and highest of the rounds.
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import drawn_rewards
import measuring
import rivals
from conversations import stories_about

GENERATIONS = 8
MICRO_BATCH = 8
RATE = 1e-5
SPEED = "steps_per_second"
"""The figure that says how fast a run is."""


def main() -> None:
    """Measure each, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    measuring.rounds_option(parser)
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps, of which the first is left out")
    parser.add_argument("--completions", type=int, default=32, help="completions in one optimizer step")
    parser.add_argument("--tokens", type=int, default=96, help="longest completion")
    options = parser.parse_args()
    if options.short:
        options.steps, options.completions, options.tokens, options.times = 2, 16, 8, 1
    if measuring.is_compiled(options.run):
        options.steps = measuring.COMPILED_STEPS
    if options.steps < 2:
        parser.error("--steps: at least 2, of which the first is left out")
    if options.run:
        measuring.tell(RUNS[options.run](options))
        return
    numbers = measuring.in_rounds([*OURS, rivals.fastest("grpo")], times=options.times)
    measuring.publish(numbers, markdown(numbers), options.output)


def prompts() -> list[str]:
    """Requests for texts longer than what is generated."""
    return list(stories_about(range(500, 660, 10)))


def train_with_toolkit(options: argparse.Namespace, engine: str) -> dict[str, float]:
    """Medians from metrics.jsonl over the steps after the first."""
    from posttrain.runs.metrics import read_metrics

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measuring.write_rows(folder / "prompts.jsonl", ({"prompt": prompt} for prompt in prompts()))
        measuring.write_config(folder / "data.yaml", data_config(options))
        shutil.copy(drawn_rewards.__file__, folder)
        written = measuring.write_config(folder / "grpo.yaml", config(options, engine))
        subprocess.run([measuring.command("toolkit-rl-train"), written], check=True, stdout=subprocess.DEVNULL)
        steps = read_metrics(folder / "runs" / "grpo" / "metrics.jsonl")[1:]
    seconds = {name: statistics.median(step["seconds"][name] for step in steps) for name in steps[0]["seconds"]}
    return {**seconds, "tokens": statistics.fmean(step["completion_tokens"] for step in steps)}


def config(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """The trainer's config."""
    return {
        "model": {"name": options.model},
        "lora": measuring.LORA,
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
            "learning_rate": RATE,
            "compile": not options.short,  # `auto` would not compile for so few steps; vLLM follows
        },
    }


def data_config(options: argparse.Namespace) -> dict[str, Any]:
    """The dataserver's config."""
    return {
        "prompts_per_iteration": options.completions // GENERATIONS,
        "graders": {"drawn": {"type": "python", "path": "drawn_rewards.py:score"}},
        "datasets": {"stories": {"path": "prompts.jsonl", "gold": None, "graders": {"drawn": 1}}},
        "stages": [{"name": "all", "until_step": 1000, "mix": {"stories": 1}}],
        "journal": {"enabled": False},
    }


def train_with_trl(options: argparse.Namespace, at_once: int, continuous: bool = False) -> dict[str, float]:
    """Train as a TRL user would: a script around GRPOTrainer that computes the reward."""
    from trl import GRPOTrainer

    lengths: list[float] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        lengths.extend(len(ids) for ids in completion_ids)
        return [drawn_rewards.drawn(messages[0]["content"]) for messages in completions]

    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(reward_funcs=reward, **trl_parts(options, output, at_once, continuous))
        seconds = measuring.seconds_of_steps(trainer, options.run)
        trainer.train()
    step = statistics.median(seconds[1:])
    return {"all": step, SPEED: 1 / step, "tokens": statistics.fmean(lengths)}


def trl_parts(
    options: argparse.Namespace, output: str, at_once: int = MICRO_BATCH, continuous: bool = False
) -> dict[str, Any]:
    """GRPOTrainer's arguments, for the same step as the toolkit's.

    Args:
        options: of the command.
        output: folder.
        at_once: completions that are trained on at once; all of a step are generated together.
        continuous: whether transformers generates by continuous batching.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig

    model = measuring.model_folder(options.model)
    arguments = GRPOConfig(
        **measuring.trl_arguments(output, options.steps, RATE, options.run),
        bf16=True,
        gradient_checkpointing=False,
        loss_type="dr_grpo",
        scale_rewards="none",
        num_generations=GENERATIONS,
        max_completion_length=options.tokens,
        use_transformers_continuous_batching=continuous,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=options.completions // at_once,
    )
    return {
        "model": AutoModelForCausalLM.from_pretrained(model, dtype="bfloat16"),
        "args": arguments,
        "train_dataset": Dataset.from_dict({"prompt": [[{"role": "user", "content": each}] for each in prompts()]}),
        "processing_class": AutoTokenizer.from_pretrained(model),
        "peft_config": measuring.peft_lora(),
    }


OURS = {
    "toolkit, vLLM": partial(train_with_toolkit, engine="vllm"),
    "toolkit, transformers": partial(train_with_toolkit, engine="hf"),
}
RIVALS = {
    f"TRL {version}, {name}": run
    for version in rivals.VERSIONS
    for name, run in {
        "8 at once": partial(train_with_trl, at_once=8),
        "16 at once": partial(train_with_trl, at_once=16),
        "32 at once": partial(train_with_trl, at_once=32),
        "8 at once, continuous batching": partial(train_with_trl, at_once=8, continuous=True),
        "8 at once, compiled": partial(train_with_trl, at_once=8),
    }.items()
}
"""What `search.py` tries."""
RUNS = {**OURS, **RIVALS}


def markdown(numbers: dict[str, Any]) -> str:
    """Seconds per step, where they go, and their ratio to the toolkit's with vLLM."""
    parts = ("generate", "grade", "learn", "sync")
    found, rows = measuring.by_run(numbers), []
    fastest = statistics.median(each["all"] for each in found["toolkit, vLLM"])
    for run, rounds in found.items():
        seconds = [each["all"] for each in rounds]
        medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        cells = [f"{medians[part]:.1f}" if part in medians else "" for part in parts]
        ratio = f"{medians['all'] / fastest:.2f}"
        rows.append([run, measuring.spread(seconds, 1), ratio, *cells, f"{medians['tokens']:.0f}"])
    return measuring.markdown_table(["GRPO", "s per step", "×", *parts, "tokens"], rows)


if __name__ == "__main__":
    main()
