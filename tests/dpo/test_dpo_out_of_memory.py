"""Preference optimisation that runs out of memory says so in one message, even before its first step."""

import os
import subprocess

from dpo.dpo_runs import write_run
from running import BIN


def test_a_reference_that_cannot_be_computed_is_told_from_a_step(tmp_path, tiny_model):
    # Eager attention needs 4 heads × 8,000² × 4 bytes, about 1 GiB, for each of 4 rows at once. A run with short rows
    # takes 2.3 GiB of address space; the limit here is 5.
    rows = [{"prompt": f"{n} " + "one two three " * 1600, "chosen": "ten", "rejected": "two"} for n in range(4)]
    model = {"name": str(tiny_model), "dtype": "float32", "attention": "eager"}
    config = write_run(tmp_path, tiny_model, rows=rows, model=model, chat={"max_length": 16384})
    done = subprocess.run(
        ["bash", "-c", f"ulimit -v {5 * 2**20} && exec {BIN / 'toolkit-dpo'} {config}"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr
    message = done.stderr[done.stderr.index("error: ") :].splitlines()
    start = "error: out of memory while the reference log-probabilities were computed, with 4 rows of up to "
    assert message[0].startswith(start)
    assert [line.split(" (")[0] for line in message[1:]] == [
        "what would help, cheapest first:",
        "  training.micro_batch_size: 4 → 2",
        "  model.dtype: float32 → auto",
        "  chat.max_length: 16384 → 3968",
        "nothing was saved yet; start again, with --overwrite if the run's folder already exists",
    ]
