"""Three steps of each trainer on a CUDA device, with each installed backend and engine."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.cuda_runs import (
    BACKENDS,
    ENGINES,
    HAS_BITSANDBYTES,
    HAS_FLASH_ATTENTION,
    HAS_LIGER,
    PRECISION,
    losses,
    write_dpo,
    write_sft,
)
from posttrain.models.kernels.offloaded_activations import activations_on_cpu
from posttrain.models.kernels.offloaded_embeddings import device_of, keep_embeddings_on_cpu
from rl.rl_runs import folder_of, run, training_rows, write_run
from running import metrics

pytestmark = pytest.mark.gpu


def test_auto_computes_in_the_16_bits_that_the_device_multiplies_fast(gpu_model: Path) -> None:
    from posttrain.models.backend import compute_dtype

    major, _ = torch.cuda.get_device_capability()
    assert compute_dtype("auto", torch.device("cuda")) is (torch.bfloat16 if major >= 8 else torch.float16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sft_learns_what_it_learns_in_float32(tmp_path: Path, gpu_model: Path, backend: str) -> None:
    fast = write_sft(tmp_path / "fast", gpu_model, model={"backend": backend})
    exact = write_sft(tmp_path / "exact", gpu_model, model={"dtype": "float32"})
    assert losses("toolkit-sft", fast) == pytest.approx(losses("toolkit-sft", exact), abs=PRECISION)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reference", ["cached", "live"])
def test_dpo_learns_what_it_learns_in_float32(tmp_path: Path, gpu_model: Path, backend: str, reference: str) -> None:
    fast = write_dpo(tmp_path / "fast", gpu_model, model={"backend": backend}, reference={"type": reference})
    exact = write_dpo(tmp_path / "exact", gpu_model, model={"dtype": "float32"}, reference={"type": reference})
    assert losses("toolkit-dpo", fast) == pytest.approx(losses("toolkit-dpo", exact), abs=PRECISION)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_grpo_trains_on_what_each_engine_generates(tmp_path: Path, gpu_model: Path, backend: str, engine: str) -> None:
    rollout = {"engine": engine, "max_prompt_tokens": 64}
    config = write_run(tmp_path, gpu_model, model={"backend": backend}, rollout=rollout, training={"max_steps": 3})
    run(config, forked=False)
    rows = training_rows(metrics(folder_of(config)))
    assert len(rows) == 3
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    if engine == "vllm":
        assert all(row["sampling/logprob_difference"] < PRECISION for row in rows)


def test_checkpointing_changes_no_loss(tmp_path: Path, gpu_model: Path) -> None:
    kept = write_sft(tmp_path / "kept", gpu_model, model={"dtype": "float32"})
    recomputed = write_sft(
        tmp_path / "recomputed", gpu_model, model={"dtype": "float32"}, training={"gradient_checkpointing": True}
    )
    assert losses("toolkit-sft", recomputed) == pytest.approx(losses("toolkit-sft", kept), rel=1e-4)


@pytest.mark.parametrize("optimizer", ["nadam", "radam", "adafactor", "muon", "sgd"])
def test_optimizers_learn_what_they_learn_on_a_cpu(
    tmp_path: Path, gpu_model: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = {"model": {"dtype": "float32"}, "training": {"optimizer": optimizer}, "lora": None}
    on_cuda = losses("toolkit-sft", write_sft(tmp_path / "cuda", gpu_model, **sections))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    on_cpu = losses("toolkit-sft", write_sft(tmp_path / "cpu", gpu_model, **sections))
    assert on_cuda == pytest.approx(on_cpu, rel=1e-3)


def test_a_run_continues_from_its_checkpoint(tmp_path: Path, gpu_model: Path) -> None:
    training = {"schedule": "constant", "ema": {"decay": 0.5}}
    sections = {"model": {"dtype": "float32"}, "training": training, "run": {"save_every": 1}}
    whole = losses("toolkit-sft", write_sft(tmp_path / "whole", gpu_model, **sections))
    config = write_sft(tmp_path / "cut", gpu_model, **sections)
    first = losses("toolkit-sft", config, "--set", "training.max_steps=2")
    assert [*first, *losses("toolkit-sft", config, "--resume")[2:]] == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_an_adapter_that_starts_from_the_base_begins_with_its_loss(tmp_path: Path, gpu_model: Path, init: str) -> None:
    zero = write_sft(tmp_path / "zero", gpu_model, model={"dtype": "float32"})
    started = write_sft(tmp_path / "started", gpu_model, model={"dtype": "float32"}, lora={"init": init})
    assert losses("toolkit-sft", started)[0] == pytest.approx(losses("toolkit-sft", zero)[0], rel=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_offloading_changes_no_loss(tmp_path: Path, gpu_model: Path, checkpointing: bool) -> None:
    exact = {"dtype": "float32"}
    kept = write_sft(tmp_path / "kept", gpu_model, model=exact, training={"gradient_checkpointing": checkpointing})
    training = {"gradient_checkpointing": checkpointing, "offload_activations": True}
    moved = write_sft(tmp_path / "moved", gpu_model, model=exact, training=training)
    assert losses("toolkit-sft", moved) == pytest.approx(losses("toolkit-sft", kept), rel=1e-4)


def test_an_embedding_outside_the_device_changes_no_logit(gpu_model: Path) -> None:
    from transformers import AutoConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(gpu_model)
    config.tie_word_embeddings = False
    model: Any = LlamaForCausalLM(config).requires_grad_(False)
    model.cuda()
    ids = torch.arange(24, device="cuda").view(2, 12)
    before = model(input_ids=ids).logits
    keep_embeddings_on_cpu(model)
    assert model.get_input_embeddings().weight.device.type == "cpu"
    assert device_of(model).type == "cuda"
    assert torch.equal(model(input_ids=ids).logits, before)


def test_activations_wait_outside_the_device(gpu_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(gpu_model)
    model.cuda()
    ids, used = torch.ones((64, 256), dtype=torch.long, device="cuda"), []
    for context in (nullcontext(), activations_on_cpu(model)):
        before = torch.cuda.memory_allocated()
        with context:
            loss = model(input_ids=ids, labels=ids).loss
        used.append(torch.cuda.memory_allocated() - before)
        loss.backward()
        model.zero_grad()
    assert used[1] < used[0] / 4


def test_float16_is_trained_with_a_scaled_loss(tmp_path: Path, gpu_model: Path) -> None:
    config = write_sft(tmp_path / "half", gpu_model, model={"dtype": "float16"})
    exact = write_sft(tmp_path / "exact", gpu_model, model={"dtype": "float32"})
    # The first steps may be skipped while the loss scale is found.
    assert losses("toolkit-sft", config)[0] == pytest.approx(losses("toolkit-sft", exact)[0], abs=PRECISION)


if HAS_BITSANDBYTES:

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("kind", ["4bit", "8bit"])
    def test_a_quantised_base_trains_its_adapter(tmp_path: Path, gpu_model: Path, backend: str, kind: str) -> None:
        config = write_sft(tmp_path / "few", gpu_model, model={"backend": backend, "quantization": kind})
        whole = write_sft(tmp_path / "whole", gpu_model)
        few_bits = losses("toolkit-sft", config)
        assert few_bits == pytest.approx(losses("toolkit-sft", whole), abs=0.3)

    def test_loftq_starts_at_another_loss_and_trains(tmp_path: Path, gpu_model: Path) -> None:
        quantised = {"backend": "hf", "quantization": "4bit", "dtype": "float32"}
        plain = losses("toolkit-sft", write_sft(tmp_path / "plain", gpu_model, model=quantised))
        started = losses(
            "toolkit-sft", write_sft(tmp_path / "loftq", gpu_model, model=quantised, lora={"init": "loftq"})
        )
        assert started[0] != plain[0]
        assert started == pytest.approx(plain, abs=0.3)

    def test_the_adapter_of_a_quantised_base_is_float32_and_the_base_has_few_bits(gpu_model: Path) -> None:
        from posttrain.config.sections.model import LoraConfig, ModelConfig
        from posttrain.models.backend import TrainingSettings
        from posttrain.models.hf import HfBackend

        settings = TrainingSettings(chatml=True, max_length=64, gradient_checkpointing=False, seed=0)
        for kind, stored in (("4bit", torch.uint8), ("8bit", torch.int8)):
            config = ModelConfig.model_validate({"name": str(gpu_model), "quantization": kind})
            model = HfBackend().load_for_training(config, LoraConfig(), settings=settings).model
            assert {each.dtype for each in model.parameters() if each.requires_grad} == {torch.float32}
            projections = [each for name, each in model.named_parameters() if name.endswith("q_proj.base_layer.weight")]
            assert [each.dtype for each in projections] == [stored, stored]

    @pytest.mark.parametrize("optimizer", ["adamw_8bit", "paged_adamw", "paged_adamw_8bit"])
    def test_bitsandbytes_trains_all_weights_as_adamw_does(tmp_path: Path, gpu_model: Path, optimizer: str) -> None:
        training = {"optimizer": optimizer}
        small = write_sft(tmp_path / "small", gpu_model, lora=None, training=training)
        usual = write_sft(tmp_path / "usual", gpu_model, lora=None)
        assert losses("toolkit-sft", small) == pytest.approx(losses("toolkit-sft", usual), abs=0.3)


if HAS_FLASH_ATTENTION:

    def test_flash_attention_computes_what_sdpa_computes(tmp_path: Path, gpu_model: Path) -> None:
        flash = write_sft(tmp_path / "flash", gpu_model, model={"attention": "flash_attention_2"})
        sdpa = write_sft(tmp_path / "sdpa", gpu_model, model={"attention": "sdpa"})
        assert losses("toolkit-sft", flash) == pytest.approx(losses("toolkit-sft", sdpa), abs=PRECISION)


if HAS_LIGER:

    def test_liger_computes_what_the_model_computes(tmp_path: Path, gpu_model: Path) -> None:
        fused = write_sft(tmp_path / "fused", gpu_model, training={"liger_kernel": True})
        plain = write_sft(tmp_path / "plain", gpu_model)
        assert losses("toolkit-sft", fused) == pytest.approx(losses("toolkit-sft", plain), abs=PRECISION)
