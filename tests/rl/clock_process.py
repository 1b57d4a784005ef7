"""GRPOTrainer itself on a tiny model, and what each call of its reward function saw.

    clock_process.py CASES.json FOLDER

runs every case in turn, alone or as one of torchrun's ranks, and writes FOLDER/<name>.<rank>.json.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from posttrain.base.processes import process_count
from posttrain.rl.clock import Clock

VOCABULARY = ["<pad>", "<eos>", "<unk>", *(str(number) for number in range(61))]


class Prompts:
    """What the training set says of a row when the trainer reads it; `place` is the clock's."""

    def __init__(self, place: Callable[[int], Any]) -> None:
        self.place = place

    def __call__(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        rows = batch["row"]
        places = [self.place(row) for row in rows]
        return {
            "prompt": [str(row % 61) for row in rows],
            "row": rows,
            "iteration": [iteration for iteration, _ in places],
            "slot": [slot for _, slot in places],
            "split": ["train"] * len(rows),
        }


class StopAt(TrainerCallback):
    """Ends the training, with a checkpoint, as an interrupt does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def answers(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[list[Any]]]:
    """One completion for each entry: TRL repeats a prompt as often as it wants completions."""
    ids = [[3 + position % 5, 4, 1] for position in range(len(prompts))]
    logprobs = [[-1.0] * len(one) for one in ids]
    return {"prompt_ids": [[3 + int(prompt)] for prompt in prompts], "completion_ids": ids, "logprobs": logprobs}


def build(case: dict[str, Any], folder: Path, calls: list[dict[str, Any]]) -> GRPOTrainer:
    def reward(completions: list[str], trainer_state: Any, split: list[str], **columns: Any) -> list[float | None]:
        seen = {key: columns[key] for key in ("row", "iteration", "slot")}
        calls.append({"step": trainer_state.global_step, "split": split, **seen})
        return [float(number % 2) for number in range(len(completions))]

    letters = case["letters"]
    # Without a clock, where it refuses the numbers, rows are placed nowhere.
    place = Clock(**letters, processes=process_count()).place if case["clock"] else lambda _: (None, None)
    held_out = {"prompt": ["7"] * 2, "row": [0, 1], "iteration": [-1] * 2, "slot": [-1] * 2, "split": ["eval"] * 2}
    return GRPOTrainer(
        model(),
        reward,
        args=arguments(case, folder),
        train_dataset=Dataset.from_dict({"row": range(case["rows"])}).with_transform(Prompts(place)),
        eval_dataset=Dataset.from_dict(held_out) if case["evaluate"] else None,
        processing_class=tokenizer(),
        rollout_func=answers,
    )


def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


def arguments(case: dict[str, Any], folder: Path) -> GRPOConfig:
    letters = case["letters"]
    return GRPOConfig(
        str(folder),
        per_device_train_batch_size=letters["micro_batch_size"],
        gradient_accumulation_steps=letters["accumulation_steps"],
        num_generations=letters["generations"],
        steps_per_generation=letters["steps_per_generation"],
        num_iterations=letters["iterations"],
        max_completion_length=4,
        max_steps=case["max_steps"],
        shuffle_dataset=False,
        eval_strategy="steps" if case["evaluate"] else "no",
        eval_steps=1,
        per_device_eval_batch_size=letters["generations"],
        save_strategy="no",
        # What is trained next depends on the step alone; with two CPU ranks, transformers cannot read optimizer.pt.
        save_only_model=True,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def run(case: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The calls of the whole training, which is ended and resumed at step `resume_at` where the case has one."""
    calls: list[dict[str, Any]] = []
    stop = case["resume_at"]
    if not stop:
        build(case, folder, calls).train()
        return calls
    first = build(case, folder, calls)
    first.add_callback(StopAt(stop))
    first.train()
    # A trainer of its own: its count of micro-steps begins at 0, as in a new process.
    build(case, folder, calls).train(resume_from_checkpoint=str(folder / f"checkpoint-{stop}"))
    return calls


def main(cases: Path, folder: Path) -> None:
    # Each training begins with a collection of garbage, half of whose time would go to what was imported.
    gc.freeze()
    rank = os.environ.get("RANK", "0")
    for case in json.loads(cases.read_text()):
        calls = run(case, folder / case["name"])
        (folder / f"{case['name']}.{rank}.json").write_text(json.dumps(calls))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
