"""Reinforcement learning that runs out of memory prints one error and stops its dataserver."""

import subprocess
from pathlib import Path

from rl.rl_runs import write_run
from running import BIN


def test_completions_that_cannot_be_generated_are_told_from_a_step(tmp_path: Path, tiny_model: Path) -> None:
    # Eager attention needs 4 heads × 11,000² × 4 bytes, about 2 GiB, for each of the 2 prompts of a step; the address
    # space is limited to 5 GiB.
    config = write_run(
        tmp_path,
        tiny_model,
        model={"dtype": "float32", "attention": "eager"},
        rollout={"max_prompt_tokens": 20_000},
        evaluation=None,
    )
    for data in ("a", "b"):
        text = "one two three " * 2200
        (tmp_path / f"{data}.jsonl").write_text("".join(f'{{"prompt": "{n} {text}"}}\n' for n in range(20)))
    limited = f"ulimit -v {5 * 2**20} && exec {BIN / 'toolkit-rl-train'} {config}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    message = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert message[0].startswith("error: out of memory while completions were generated after optimizer step 0: this ")
    assert [line.split(" (")[0] for line in message[1:4]] == [
        "what would help, cheapest first:",
        "  rollout.batch_size: 64 → 32",
        "  model.dtype: float32 → auto",
    ]
    assert message[-1].startswith("nothing was saved yet; start again")
    assert not list(tmp_path.glob("runs/*.ready.json"))  # the dataserver removes it when it stops
