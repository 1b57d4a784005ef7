"""Fine-tune SmolLM2-135M-Instruct on word problems, merge, answer held-out problems, train with GRPO, and show it all.

    python examples/word_problems/demo.py

Runs the same commands that a user would type, one after another, and ends with two tables.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RUN = HERE.parents[1] / "runs" / "word_problems"
PRACTICE = RUN.with_name("word_problems_grpo")
FORMAT = re.compile(r"(\d+ [+×-] \d+ = \d+\n)+Answer: (\d+)")


def main() -> None:
    started = time.monotonic()
    config, held_out = str(HERE / "sft.yaml"), str(HERE / "held_out.jsonl")
    answers = {weights: RUN.with_name(f"word_problems_{weights}.jsonl") for weights in ("base", "merged")}
    # Brief on purpose: it leaves something for the practice to learn.
    command("toolkit-sft", config, "--set", "training.max_steps=40", "--overwrite")
    command("toolkit-merge", config, "--overwrite")
    for weights, output in answers.items():
        command("toolkit-predict", config, held_out, str(output), "--weights", weights, "--overwrite")
    command("toolkit-rl-train", str(HERE / "grpo.yaml"), "--overwrite")
    console = Console(width=100)
    show_tuning(console, answers["base"], answers["merged"])
    show_practice(console)
    show_example(console, answers["base"], answers["merged"])
    console.print(f"\nthe whole demo took {time.monotonic() - started:.0f} s")


def command(name: str, *arguments: str) -> None:
    """Run a toolkit command from this interpreter's environment; exit if it fails."""
    program = shutil.which(name, path=str(Path(sys.executable).parent)) or name
    print(f"\n$ {name} {' '.join(relative(argument) for argument in arguments)}", flush=True)
    finished = subprocess.run([program, *arguments], check=False)
    if finished.returncode:
        raise SystemExit(finished.returncode)


def relative(argument: str) -> str:
    path = Path(argument)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else argument


def show_tuning(console: Console, base: Path, tuned: Path) -> None:
    """Show what fine-tuning changed."""
    result = json.loads((RUN / "result.json").read_text())
    losses = [row["eval_loss"] for row in read(RUN / "metrics.jsonl") if "eval_loss" in row]
    before, after = read(base), read(tuned)
    table = Table(title="SFT: 100 held-out word problems", title_justify="left")
    for column in ("", "base", "tuned"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("held-out loss (nats per token)", f"{losses[0]:.3f}", f"{losses[-1]:.3f}")
    table.add_row("answers in the format", share(before, in_format), share(after, in_format))
    table.add_row("answers that are right", share(before, is_right), share(after, is_right))
    console.print()
    console.print(table)
    console.print(
        f"trained {result['tokens']:,} tokens in {result['seconds']:.0f} s "
        f"({result['tokens_per_second']:.0f} tokens/s), peak memory {result['peak_memory_gib']:.1f} GiB"
    )


def show_practice(console: Console) -> None:
    """Show what the practice changed, problem by problem."""
    result = json.loads((PRACTICE / "result.json").read_text())
    reward = result["held_out"]["reward"]
    table = Table(title=f"GRPO from there: {reward['prompts']} more held-out word problems", title_justify="left")
    for column in ("", "before", "after", "difference, paired, 95 % interval"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row(
        "answers that are right",
        f"{reward['before']:.1%}",
        f"{reward['after']:.1%}",
        f"{reward['mean']:+.1%} ({reward['low']:+.1%} to {reward['high']:+.1%})",
    )
    console.print()
    console.print(table)
    console.print(
        f"{result['steps']} steps in {result['seconds']:.0f} s, peak memory {result['peak_memory_gib']:.1f} GiB"
    )


def show_example(console: Console, base: Path, tuned: Path) -> None:
    """Show one problem with both answers."""
    before, after = read(base)[0], read(tuned)[0]
    console.print(f"\n[bold]asked[/]  {before['messages'][0]['content']}", highlight=False)
    for label, row in (("base ", before), ("tuned", after)):
        console.print(f"[bold]{label}[/]  {answer(row).splitlines()!r}", highlight=False)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def answer(row: dict) -> str:
    return row["messages"][-1]["content"]


def in_format(row: dict) -> bool:
    return FORMAT.fullmatch(answer(row).strip()) is not None


def is_right(row: dict) -> bool:
    """Whether the last number of the answer, in whatever format, is the right one."""
    numbers = re.findall(r"\d+", answer(row))
    return bool(numbers) and numbers[-1] == row["reference"].rsplit(" ", 1)[-1]


def share(rows: list[dict], holds) -> str:
    return f"{sum(map(holds, rows)) / len(rows):.0%}"


if __name__ == "__main__":
    main()
