"""Tokens per second of toolkit-predict, compared with transformers' `generate`.

python benchmarks/predict.py [--prompts N] [--tokens N] [--times N] [--output FILE]

All answer the same prompts of mixed length, in bfloat16, without sampling. `generate` is called in the way that
`search.py` found to be the fastest: on batches of 8, 16, 32 or 64, in file order or of similar length with the longest
first, padded on the left, or compiled with a static cache. The toolkit takes 64 at once with transformers, and vLLM
decides for itself; neither compiles. Only tokens that belong to an answer count. The speed is that of generation alone;
the seconds of the whole command, including imports and loading, are shown beside it. In bfloat16, batches of different
shapes can differ in a token where two are almost equally likely, and in all that follow, so the share of answers that
equal those of `generate` is shown. The runs take turns. Prints a Markdown table with the median, lowest and highest of
the rounds.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import conversations
import measuring
import rivals

SPEED = "tokens_per_second"
"""The figure that says how fast a run is."""
SAID = re.compile(r"([\d,]+) tokens in ([\d.]+) s")


def main() -> None:
    """Measure each, compare, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    measuring.rounds_option(parser)
    parser.add_argument("--prompts", type=int, default=64, help="prompts that are answered")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer")
    parser.add_argument("--dtype", default="bfloat16", help="what all compute in")
    options = parser.parse_args()
    if options.short:
        options.prompts, options.tokens, options.dtype, options.times = 12, 8, "float32", 1
    if options.run:
        measuring.tell(RUNS[options.run](options))
        return
    rival = rivals.fastest("predict")
    numbers = measuring.in_rounds([*OURS, rival], times=options.times)
    for found in numbers["rounds"]:
        plain = found[rival]["answers"]
        for figures in found.values():
            answers = figures.pop("answers")
            figures["equal_answers"] = sum(map(str.__eq__, answers, plain)) / len(plain)
    measuring.publish(numbers, markdown(numbers), options.output)


def answer_with_toolkit(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Run the command, which reports how many tokens it generated in how many seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = ({"prompt": prompt} for prompt in conversations.prompts(options.prompts))
        input_ = measuring.write_rows(folder / "prompts.jsonl", asked)
        written = {
            "model": {"name": options.model, "backend": "hf", "dtype": options.dtype},
            "chat": {"template": "tokenizer"},  # as `generate` gets it, system message and all
            "generation": {"engine": engine, "max_new_tokens": options.tokens, "batch_size": 64},
        }
        config, output = measuring.write_config(folder / "predict.yaml", written), folder / "answers.jsonl"
        began = time.perf_counter()
        line = [measuring.command("toolkit-predict"), config, input_, output, "--weights", "base"]
        done = subprocess.run(line, capture_output=True, text=True)
        whole = time.perf_counter() - began
        said = SAID.search(done.stderr)
        if done.returncode or said is None:
            raise SystemExit(f"toolkit-predict failed: {done.stderr}")
        rows = [json.loads(row) for row in output.read_text().splitlines()]
    answers = [row["messages"][-1]["content"] for row in rows]
    return numbers_of(answers, int(said[1].replace(",", "")), float(said[2]), whole)


def answer_with_generate(options: argparse.Namespace, at_once: int, by_length: bool = True) -> dict[str, Any]:
    """Loop over batches of `at_once` prompts, from the longest to the shortest or in file order.

    A compiled model answers all of them once before it is timed.
    """
    began = time.perf_counter()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = measuring.model_folder(options.model)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=options.dtype)
    chats = [[{"role": "user", "content": prompt}] for prompt in conversations.prompts(options.prompts)]
    order = sorted(range(len(chats)), key=lambda row: -len(chats[row][0]["content"]) if by_length else row)
    how: dict[str, Any] = {"max_new_tokens": options.tokens, "do_sample": False}
    if measuring.is_compiled(options.run):
        how["cache_implementation"] = "static"
        model.forward = torch.compile(model.forward, dynamic=True)
        generate(model, tokenizer, chats, order, at_once, how)
    loaded = time.perf_counter()
    answers, tokens = generate(model, tokenizer, chats, order, at_once, how)
    ended = time.perf_counter()
    return numbers_of(answers, tokens, ended - loaded, ended - began)


def generate(
    model: Any, tokenizer: Any, chats: list[Any], order: list[int], at_once: int, how: dict[str, Any]
) -> tuple[list[str], int]:
    """The answers to `chats`, taken in this order, and the number of their tokens."""
    answers, tokens = [""] * len(chats), 0
    for first in range(0, len(chats), at_once):
        batch = order[first : first + at_once]
        inputs = tokenizer.apply_chat_template(
            [chats[row] for row in batch],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        output = model.generate(**inputs, **how)
        new = output[:, inputs["input_ids"].shape[1] :]
        for row, answer in zip(batch, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
            answers[row] = answer
        tokens += sum(map(partial(length_of_answer, end=tokenizer.eos_token_id), new.tolist()))
    return answers, tokens


def length_of_answer(ids: list[int], end: int) -> int:
    """Tokens up to and including the end token; the rest is padding."""
    return ids.index(end) + 1 if end in ids else len(ids)


def numbers_of(answers: list[str], tokens: int, seconds: float, whole: float) -> dict[str, Any]:
    """`seconds` are those of generation, `whole` those of the whole command."""
    return {
        "tokens_per_second": tokens / seconds,
        "tokens": tokens,
        "whole_seconds": whole,
        "answers": [answer.strip() for answer in answers],
    }


OURS = {
    "toolkit, hf": partial(answer_with_toolkit, engine="hf"),
    "toolkit, vLLM": partial(answer_with_toolkit, engine="vllm"),
}
RIVALS = {
    f"generate {version}, {name}": run
    for version in rivals.VERSIONS
    for name, run in {
        "8 at once in file order": partial(answer_with_generate, at_once=8, by_length=False),
        "8 at once": partial(answer_with_generate, at_once=8),
        "16 at once": partial(answer_with_generate, at_once=16),
        "32 at once": partial(answer_with_generate, at_once=32),
        "64 at once": partial(answer_with_generate, at_once=64),
        "64 at once, compiled": partial(answer_with_generate, at_once=64),
    }.items()
}
"""What `search.py` tries."""
RUNS = {**OURS, **RIVALS}


def markdown(numbers: dict[str, Any]) -> str:
    """A row for each run."""
    found, rows = measuring.by_run(numbers), []
    (rival,) = found.keys() - OURS.keys()
    plain = statistics.median(each["tokens_per_second"] for each in found[rival])
    for run, rounds in found.items():
        speeds = [each["tokens_per_second"] for each in rounds]
        rows.append(
            [
                run,
                measuring.spread(speeds),
                f"{statistics.median(speeds) / plain:.2f}",
                rounds[0]["tokens"],
                measuring.spread([each["whole_seconds"] for each in rounds]),
                f"{rounds[0]['equal_answers']:.0%}",
            ]
        )
    head = ["predict", "tokens/s", "×", "tokens", "s of the whole command", "answers equal to the rival's"]
    return measuring.markdown_table(head, rows)


if __name__ == "__main__":
    main()
