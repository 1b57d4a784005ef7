"""The shape of the backends: unsloth runs our trainer, in a process of its own, to the same losses."""

import pytest

from running import metrics


def test_three_steps_through_unsloth_lose_what_three_steps_through_hf_lose(write_config, toolkit, tmp_path):
    config = write_config(lora={"r": 4})
    for backend in ("hf", "unsloth"):
        options = (f"model.backend={backend}", "training.max_steps=3", "model.dtype=float32")
        toolkit("toolkit-sft", config, "--run-name", backend, *(part for o in options for part in ("--set", o)))
    hf, unsloth = (metrics(tmp_path / "runs" / backend) for backend in ("hf", "unsloth"))
    assert [row["order_hash"] for row in unsloth] == [row["order_hash"] for row in hf]
    assert unsloth[0]["loss"] == pytest.approx(hf[0]["loss"], abs=1e-3)
    # The adapters start from other random numbers, so later steps agree in size only.
    assert [row["loss"] for row in unsloth] == pytest.approx([row["loss"] for row in hf], rel=0.05)
