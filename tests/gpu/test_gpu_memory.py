"""CUDA memory: what a run reports when it needs too much, how vLLM gets its weights, and what it frees."""

import json
from pathlib import Path

import pytest
import torch

from gpu.cuda_runs import HAS_VLLM, start, write_sft
from posttrain.runs.checkpoints import complete_checkpoints
from posttrain.runs.directory import RunDirectory
from rl.rl_runs import folder_of, run, training_rows, write_run
from running import metrics

pytestmark = pytest.mark.gpu


def test_a_step_that_does_not_fit_names_what_would_and_leaves_the_checkpoint_before_it(
    tmp_path: Path, gpu_model: Path
) -> None:
    # Eager attention needs 2 heads × tokens² × 2 bytes for each of 64 rows at once: 1.5 times the device's memory.
    total = torch.cuda.mem_get_info()[1]
    tokens = int((1.5 * total / (64 * 2 * 2)) ** 0.5)
    rows = [{"prompt": f"{number}", "completion": "one two three " * (tokens // 3)} for number in range(64)]
    config = write_sft(
        tmp_path,
        gpu_model,
        model={"attention": "eager"},
        chat={"max_length": 2 * tokens},
        datasets={"a": {"path": "sft.jsonl"}, "long": {"path": "long.jsonl"}},
        stages=[
            {"name": "one", "until_step": 2, "mix": {"a": 1}},
            {"name": "two", "until_step": 3, "mix": {"long": 1}},
        ],
        training={"rows_per_step": 64, "micro_batch_size": 64},
        run={"save_every": 1},
    )
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finished = start("toolkit-sft", config)

    assert finished.returncode == 1, finished.stderr
    said = finished.stderr[finished.stderr.index("error: ") :]
    assert said.startswith("error: out of memory in optimizer step 3, with 64 rows of up to ")
    assert "GiB of cuda:0 (" in said
    assert "the failed allocation needed " in said
    assert "\n  training.micro_batch_size: 64 → 32 (" in said
    assert "\n  training.gradient_checkpointing: false → true (" in said
    assert "\n  model.quantization: none → 4bit (" in said
    assert "checkpoint-2 is complete: --resume continues from it" in said
    kept = complete_checkpoints(RunDirectory(tmp_path / "runs" / "sft"))
    assert [each.step for each in kept] == [1, 2]


if HAS_VLLM:

    @pytest.mark.parametrize("sleep", [False, True])
    def test_vllm_answers_with_the_weights_of_the_step_whichever_way_they_come(
        tmp_path: Path, gpu_model: Path, sleep: bool
    ) -> None:
        rows = []
        for sync in ("adapter", "weights"):
            rollout = {"engine": "vllm", "sync": sync, "sleep": sleep, "max_prompt_tokens": 64}
            config = write_run(
                tmp_path / sync, gpu_model, model={"dtype": "float32"}, rollout=rollout, training={"max_steps": 3}
            )
            run(config, forked=False)
            rows.append(training_rows(metrics(folder_of(config))))
        # With the weights of another step the difference would be far larger: the learning rate is large.
        for row in rows[0] + rows[1]:
            assert row["sampling/logprob_difference"] < 1e-2

    def test_vllm_leaves_its_memory_to_others_while_it_sleeps(tmp_path: Path, gpu_model: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from posttrain.inference.engine import GenerationRequest, Sampling
        from posttrain.inference.vllm import VllmEngine
        from posttrain.inference.vllm_load import VllmOptions

        weights = tmp_path / "weights"
        AutoModelForCausalLM.from_pretrained(gpu_model, dtype=torch.bfloat16).save_pretrained(weights)
        AutoTokenizer.from_pretrained(gpu_model).save_pretrained(weights)
        options = VllmOptions("bfloat16", 128, gpu_memory_utilization=0.3, sleeps=True)
        total = torch.cuda.mem_get_info()[1]
        engine = VllmEngine(weights, frozenset({2}), options)
        try:
            asleep = torch.cuda.mem_get_info()[0]
            engine.load(weights, 0)
            awake = torch.cuda.mem_get_info()[0]
            requests = [GenerationRequest((5, 6, 7, 8))]
            first = engine.complete(requests, Sampling(max_new_tokens=8))
            asleep_again = torch.cuda.mem_get_info()[0]
            second = engine.complete(requests, Sampling(max_new_tokens=8))
        finally:
            engine.close()
        assert asleep - awake > 0.2 * total
        assert asleep_again - awake > 0.2 * total
        assert first[0, 0].token_ids == second[0, 0].token_ids
