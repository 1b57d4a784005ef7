"""A run that does not fit into memory: one message says where, how much and what to change; a checkpoint is kept."""

import json
import re

import pytest
import yaml

from posttrain.runs.checkpoints import complete_checkpoints
from posttrain.runs.directory import RunDirectory
from running import BIN, metrics

# GiB of address space; a run with short rows takes 2.3.
LIMIT = 5
ULIMIT = f"ulimit -v {LIMIT * 2**20}"
ROWS = 4


@pytest.fixture
def config(write_config, tmp_path, tiny_model):
    """Two steps of short rows, then one with all rows of about 8,000 tokens at once.

    Eager attention needs 4 heads × 8,000² × 4 bytes, about 1 GiB, for each row.
    """
    rows = [{"prompt": f"{number} " + "one two three " * 1600, "completion": "ten"} for number in range(ROWS)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_config(
        model={"name": str(tiny_model), "attention": "eager", "dtype": "float32"},
        lora={"r": 4},
        chat={"max_length": 16384},
        datasets={"a": {"path": "a.jsonl"}, "long": {"path": "long.jsonl"}},
        stages=[
            {"name": "one", "until_step": 2, "mix": {"a": 1}},
            {"name": "two", "until_step": 3, "mix": {"long": 1}},
        ],
        training={"rows_per_step": ROWS, "micro_batch_size": ROWS},
        run={"save_every": 2},
    )


def test_a_step_that_does_not_fit_names_what_would_and_leaves_a_checkpoint_to_go_on_from(config, toolkit, tmp_path):
    said = toolkit("bash", "-c", f"{ULIMIT} && exec {BIN / 'toolkit-sft'} {config}", expect=1).stderr
    message = said[said.index("error: ") :].splitlines()

    first = re.fullmatch(
        r"error: out of memory in optimizer step 3, with 4 rows of up to ([\d,]+) tokens in the model at once: this "
        r"process used ([\d.]+) of its 5\.0 GiB \(ulimit -v\), and the failed allocation needed ([\d.]+) GiB more",
        message[0],
    )
    assert first, said
    tokens, taken, asked = (float(number.replace(",", "")) for number in first.groups())
    assert 7500 < tokens < 9000
    assert asked == pytest.approx(ROWS * 4 * tokens**2 * 4 / 2**30, rel=0.01)
    assert taken + asked > LIMIT
    assert [line.split(" (")[0] for line in message[1:5]] == [
        "what would help, cheapest first:",
        "  training.micro_batch_size: 4 → 2",
        "  training.gradient_checkpointing: false → true",
        "  model.dtype: float32 → auto",
    ]
    run = tmp_path / "runs" / "run"
    assert message[5].startswith(
        f"{run / 'checkpoint-2'} is complete: --resume continues from it with the same config; "
    )
    assert len(message) == 6
    assert [each.step for each in complete_checkpoints(RunDirectory(run))] == [2]
    assert len(metrics(run)) == 2

    # As the message suggests, a smaller config continues from the checkpoint's adapter.
    smaller = yaml.safe_load(config.read_text())
    del smaller["lora"]
    smaller["model"]["adapter"] = str(tmp_path / "runs" / "run" / "checkpoint-2")
    smaller["chat"]["max_length"] = 256  # the long rows are dropped, so only the short ones are trained
    smaller["stages"] = smaller["stages"][:1]
    del smaller["datasets"]["long"]
    config.write_text(yaml.safe_dump(smaller))
    toolkit("bash", "-c", f"{ULIMIT} && exec {BIN / 'toolkit-sft'} {config} --run-name smaller")
    before, after = (metrics(tmp_path / "runs" / name) for name in ("run", "smaller"))
    assert after[0]["loss"] < before[0]["loss"]
