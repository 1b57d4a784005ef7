"""What `gpu.py` runs in its processes: writing the model, and training with the toolkit and with plain TRL."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_material import as_messages, backwards, texts, write_jsonl, write_model

Numbers = dict[str, Any]
LORA = {"r": 16, "alpha": 32, "target_modules": "all-linear"}
GENERATIONS = 4
LEARNING_RATE = 1e-4
WARM_UP = 1
"""Optimizer steps left out of a median: the first allocates memory and compiles."""


def config(options: argparse.Namespace, kind: str, **changes: Any) -> dict[str, Any]:
    """The config of a toolkit run of that kind; `changes` are merged into its sections."""
    written: dict[str, Any] = {
        "model": {"name": str(options.model), "backend": "hf"},
        "lora": LORA,
        "chat": {"max_length": options.length},
        "training": {
            "rows_per_step": options.rows,
            "micro_batch_size": options.micro_batch,
            "learning_rate": LEARNING_RATE,
            "schedule": "constant",
            "max_steps": options.steps,
        },
        "run": {"save_every": 10_000},
        **_OF_KIND[kind](options),
    }
    for section, change in changes.items():
        written[section] = {**written.get(section, {}), **change} if isinstance(change, dict) else change
    return written


def _of_sft(options: argparse.Namespace) -> dict[str, Any]:
    rows = [{"messages": as_messages(*pair)} for pair in _texts(options)]
    return _with_data(options, write_jsonl(options.folder / "sft.jsonl", rows))


def _of_dpo(options: argparse.Namespace) -> dict[str, Any]:
    rows = [{"prompt": q, "chosen": a, "rejected": backwards(a)} for q, a in _texts(options)]
    data = write_jsonl(options.folder / "dpo.jsonl", rows)
    return {**_with_data(options, data), "reference": {"type": "live"}}


def _with_data(options: argparse.Namespace, data: Path) -> dict[str, Any]:
    stages = [{"name": "all", "until_step": options.steps, "mix": {"rows": 1}}]
    return {"datasets": {"rows": {"path": str(data)}}, "stages": stages}


def _of_grpo(options: argparse.Namespace) -> dict[str, Any]:
    server = {
        "prompts_per_iteration": options.rows // GENERATIONS,
        "datasets": {"prompts": {"path": "prompts.jsonl", "gold": None, "graders": {"repetition": 1}}},
        "stages": [{"name": "all", "until_step": 1000, "mix": {"prompts": 1}}],
        "journal": {"enabled": False},
    }
    write_jsonl(options.folder / "prompts.jsonl", [{"prompt": each} for each in prompts(options)])
    (options.folder / "data.yaml").write_text(json.dumps(server))
    rollout = {"generations": GENERATIONS, "max_new_tokens": options.length // 2, "batch_size": options.rows}
    return {
        "dataserver": {"config": str(options.folder / "data.yaml")},
        "algorithm": "dr_grpo",
        "rollout": {**rollout, "max_prompt_tokens": options.length // 2, "gpu_memory_utilization": 0.4},
    }


_OF_KIND = {"sft": _of_sft, "dpo": _of_dpo, "grpo": _of_grpo}


def _texts(options: argparse.Namespace) -> list[tuple[str, str]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    return texts(options.rows * options.steps, tokenizer, options.length)


def prompts(options: argparse.Namespace) -> list[str]:
    """Questions for GRPO, all different."""
    return [f"{number}: {question}" for number, (question, _) in enumerate(_texts(options))]


def with_toolkit(options: argparse.Namespace, kind: str, **changes: Any) -> Numbers:
    """Train as the command does, but in this process; the numbers come from metrics.jsonl."""
    from posttrain.config.load import load_config

    path = options.folder / f"{kind}.yaml"
    path.write_text(json.dumps(config(options, kind, **changes)))
    if kind == "sft":
        from posttrain.sft.config import SFTConfig
        from posttrain.sft.train import train

        result = train(load_config(path, SFTConfig), kind)
    elif kind == "dpo":
        from posttrain.dpo.config.dpo import DPOConfig
        from posttrain.dpo.train import train

        result = train(load_config(path, DPOConfig), kind)
    else:
        from posttrain.rl.config import RLConfig
        from posttrain.rl.train import train

        result = train(load_config(path, RLConfig), kind)
    lines = [json.loads(line) for line in Path(result["directory"], "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    return {**_rates(options, kind, [_seconds(line) for line in steps]), **_trained(steps)}


def _trained(steps: list[dict[str, Any]]) -> Numbers:
    """The loss of each step and the norm of the first gradient, by which to see that systems train the same way."""
    return {"losses": [step["loss"] for step in steps], "grad_norm": steps[0]["grad_norm"]}


def _seconds(line: dict[str, Any]) -> float:
    return line["seconds"]["all"] if isinstance(line["seconds"], dict) else line["seconds"]


def _rates(options: argparse.Namespace, kind: str, seconds: list[float]) -> Numbers:
    middle = statistics.median(seconds[min(WARM_UP, len(seconds) - 1) :])
    if kind == "grpo":
        return {"value": middle, "unit": "s/step"}
    if kind == "dpo":
        return {"value": options.rows / middle, "unit": "pairs/s"}
    return {"value": tokens_per_row(options) * options.rows / middle, "unit": "tokens/s"}


def tokens_per_row(options: argparse.Namespace) -> float:
    """The mean over all rows, with ChatML's tokens and without padding: the same for every trainer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    lengths = [
        len(tokenizer.apply_chat_template(as_messages(*pair), return_dict=False))
        for pair in texts(options.rows * options.steps, tokenizer, options.length)
    ]
    return statistics.fmean(lengths)


def with_trl(
    options: argparse.Namespace, kind: str, *, vllm: bool = False, gradient_checkpointing: bool = False
) -> Numbers:
    """TRL's own trainer with its defaults, except for data, LoRA, lengths, checkpointing and the shape of a step."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    on_cuda = torch.cuda.is_available()
    dtype = torch.bfloat16 if on_cuda else torch.float32
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
    shared = {**_trl_arguments(options, on_cuda), "gradient_checkpointing": gradient_checkpointing}
    trainer = _TRAINERS[kind](options, model, tokenizer, shared, vllm)
    seconds = _seconds_of_steps(trainer)
    trainer.train()
    steps = [row for row in trainer.state.log_history if "loss" in row]
    return {**_rates(options, kind, seconds), **_trained(steps)}


def _trl_arguments(options: argparse.Namespace, on_cuda: bool) -> dict[str, Any]:
    return {
        "output_dir": str(options.folder / "trl"),
        "use_cpu": not on_cuda,
        "bf16": on_cuda,
        "max_steps": options.steps,
        "per_device_train_batch_size": options.micro_batch,
        "gradient_accumulation_steps": options.rows // options.micro_batch,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def _peft() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=LORA["r"], lora_alpha=LORA["alpha"], target_modules="all-linear", task_type="CAUSAL_LM")


def _trl_sft(options: argparse.Namespace, model: Any, tokenizer: Any, shared: dict[str, Any], _: bool) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = [{"prompt": m[:1], "completion": m[1:]} for m in (as_messages(*pair) for pair in _texts(options))]
    return SFTTrainer(
        model=model,
        args=SFTConfig(**shared, max_length=options.length),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        peft_config=_peft(),
    )


def _trl_dpo(options: argparse.Namespace, model: Any, tokenizer: Any, shared: dict[str, Any], _: bool) -> Any:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = []
    for question, answer in _texts(options):
        asked, right, wrong = (
            [{"role": role, "content": said}]
            for role, said in (("user", question), ("assistant", answer), ("assistant", backwards(answer)))
        )
        rows.append({"prompt": asked, "chosen": right, "rejected": wrong})
    return DPOTrainer(
        model=model,
        args=DPOConfig(**shared, max_length=options.length),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        peft_config=_peft(),
    )


def _trl_grpo(options: argparse.Namespace, model: Any, tokenizer: Any, shared: dict[str, Any], vllm: bool) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        return [len(set(ids)) / len(ids) for ids in completion_ids]

    with_vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.4} if vllm else {}
    return GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(
            **shared,
            **with_vllm,
            loss_type="dr_grpo",
            scale_rewards="none",
            num_generations=GENERATIONS,
            max_completion_length=options.length // 2,
        ),
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": [as_messages(each, "")[:1] for each in prompts(options)]}),
        peft_config=_peft(),
    )


_TRAINERS: dict[str, Callable[..., Any]] = {"sft": _trl_sft, "dpo": _trl_dpo, "grpo": _trl_grpo}


def _seconds_of_steps(trainer: Any) -> list[float]:
    """A list that training fills with the seconds of each optimizer step."""
    from transformers import TrainerCallback

    seconds: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    trainer.add_callback(Clock())
    return seconds


def make_model(options: argparse.Namespace) -> Numbers:
    """Write the random model that all other parts use."""
    began = time.perf_counter()
    folder = write_model(options.model, options.size, options.tokenizer)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return {"value": size / 2**30, "unit": "GiB of weights", "seconds": time.perf_counter() - began}
