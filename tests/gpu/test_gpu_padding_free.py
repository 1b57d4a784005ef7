"""Rows without padding on CUDA: torch's kernel for segments of different lengths, alone and in each trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.cuda_runs import PRECISION, steps, write_dpo, write_sft
from posttrain.models.kernels.segmented_attention import Segment, attention_inputs, segmented_attention
from rl.rl_runs import folder_of, run, training_rows, write_run
from running import metrics

pytestmark = pytest.mark.gpu

PADDING_FREE = {"batching": "padding_free"}


def test_outputs_and_gradients_are_those_of_the_cpu() -> None:
    # Two rows that see the prompt of 40 tokens, one that does not; 4 query heads share 2 key heads.
    segments = [Segment(0, 40), Segment(40, 75, 0, 40), Segment(75, 100, 0, 40), Segment(100, 164)]
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(1, heads, 164, 32, generator=generator).bfloat16() for heads in (4, 2, 2)]
    slopes = torch.randn(1, 164, 4, 32, generator=generator)
    found = {}
    for name, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        device = torch.device(name)
        query, key, value = parts = [each.to(device, dtype).requires_grad_() for each in made]
        output = segmented_attention(query, key, value, None, **attention_inputs(segments, device))
        (output.float() * slopes.to(device)).sum().backward()
        found[name] = [output, *(part.grad for part in parts)]
    for exact, ours in zip(found["cpu"], found["cuda"], strict=True):
        torch.testing.assert_close(ours.float().cpu(), exact, rtol=0.05, atol=0.05)


def require_alike(free: list[dict[str, Any]], padded: list[dict[str, Any]]) -> None:
    """Losses and gradients of the runs differ by rounding only."""
    for ours, theirs in zip(free, padded, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=PRECISION)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.05)


def test_sft_trains_as_with_padding(tmp_path: Path, gpu_model: Path) -> None:
    free = write_sft(tmp_path / "free", gpu_model, training=PADDING_FREE)
    padded = write_sft(tmp_path / "padded", gpu_model, training={"batching": "by_length"})
    require_alike(steps("toolkit-sft", free), steps("toolkit-sft", padded))


@pytest.mark.parametrize("reference", ["cached", "live"])
def test_dpo_trains_as_with_padding(tmp_path: Path, gpu_model: Path, reference: str) -> None:
    sections = {"reference": {"type": reference}}
    free = write_dpo(tmp_path / "free", gpu_model, training=PADDING_FREE, **sections)
    padded = write_dpo(tmp_path / "padded", gpu_model, training={"batching": "by_length"}, **sections)
    require_alike(steps("toolkit-dpo", free), steps("toolkit-dpo", padded))


def test_grpo_computes_the_probabilities_of_padded_completions(tmp_path: Path, gpu_model: Path) -> None:
    rows = []
    for batching in ("padding_free", "by_length"):
        sections = {"training": {"max_steps": 1, "batching": batching}, "lora": {"dropout": 0.0}}
        config = write_run(tmp_path / batching, gpu_model, **sections)
        run(config, forked=False)
        rows.append(training_rows(metrics(folder_of(config)))[0])
    # The first step's completions are those of the same weights, so only the batching differs.
    for key in ("loss", "entropy"):
        assert rows[0][key] == pytest.approx(rows[1][key], abs=PRECISION)
    assert rows[0]["grad_norm"] == pytest.approx(rows[1]["grad_norm"], rel=0.1)


@pytest.mark.parametrize("batching", ["padding_free", "by_length"])
def test_compiled_layers_train_as_written_ones_do(tmp_path: Path, gpu_model: Path, batching: str) -> None:
    compiled = write_sft(tmp_path / "compiled", gpu_model, training={"batching": batching, "compile": True})
    plain = write_sft(tmp_path / "plain", gpu_model, training={"batching": batching, "compile": False})
    require_alike(steps("toolkit-sft", compiled), steps("toolkit-sft", plain))
