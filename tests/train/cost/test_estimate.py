"""The cost `--dry-run` predicts: hand-computed counts, what grows with what, and the lines it prints."""

import re
import resource
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, Lfm2Config

from posttrain.config.load import load_config
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ModelError
from posttrain.models.backend import TrainingSettings
from posttrain.models.hf import HfBackend
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.model_shape import ModelShape, Weights, read_shape
from posttrain.sft.config import SFTConfig
from posttrain.sft.plan import show_plan
from posttrain.train.cost.batches import Batch
from posttrain.train.cost.estimate import Estimate, Work, estimate, flops, peak_bytes, step_seconds
from posttrain.train.cost.shallow_model import KeptBytes, Probe, Seconds
from posttrain.train.memory import available_bytes
from posttrain.train.plan import estimate_line, sampled_steps, show_estimate
from tiny_experts import write_tiny_experts

# Each layer of the tiny model has four 64 × 64 and three 64 × 128 matrices; the embedding is tied to the head.
LAYER = 4 * 64 * 64 + 3 * 64 * 128
ADAPTER = 4 * 8 * (64 + 64) + 3 * 8 * (64 + 128)
EMBEDDING, NORMS = 384 * 64, 5 * 64

SHAPE = ModelShape(
    layers=2,
    in_layers=Weights(frozen=2 * LAYER, trained=2 * ADAPTER),
    head=Weights(frozen=EMBEDDING, trained=0),
    attention=2 * 64,
    hidden=64,
    vocabulary=384,
    everything=Weights(2 * LAYER + EMBEDDING + NORMS, 2 * ADAPTER),
    weight_bytes=4 * (2 * LAYER + EMBEDDING + NORMS + 2 * ADAPTER),
    state_bytes=8 * 2 * ADAPTER,
)
KEPT = KeptBytes((10.0, 5000.0, 2.0, 0.0), (10.0, 100.0, 1.0, 128.0), residual=2)
SECONDS = Seconds(rows=4, width=64, layer=0.01, around=0.001, head=1e-5, update=1e-9)

batches = st.builds(
    Batch, rows=st.integers(1, 16), width=st.integers(8, 512), trained=st.integers(1, 8), has_gradient=st.just(True)
)


def peak(shape: ModelShape, kept: KeptBytes, step: list[list[Batch]]) -> float:
    return peak_bytes(shape, kept, step, torch.device("cpu"))


def test_the_weights_of_a_model_with_an_adapter_are_counted_without_its_weights(trained):
    assert read_shape(trained()) == SHAPE


def test_without_an_adapter_every_weight_is_trained(trained):
    shape = read_shape(trained(lora=None, training={"optimizer": "sgd", "gradient_checkpointing": True}))
    assert (shape.in_layers, shape.head) == (Weights(0, 2 * LAYER), Weights(0, EMBEDDING))
    assert shape.everything == Weights(0, 2 * LAYER + EMBEDDING + NORMS)
    assert shape.state_bytes == 0
    assert shape.checkpointing


def test_only_the_modules_that_have_an_adapter_are_trained(trained):
    shape = read_shape(trained(lora={"r": 4, "target_modules": ["q_proj", "v_proj"]}))
    assert shape.in_layers == Weights(2 * LAYER, 2 * 2 * 4 * (64 + 64))


def test_an_embedding_that_is_trained_in_full_trains_the_head_that_is_tied_to_it(trained):
    shape = read_shape(trained(lora={"r": 8, "modules_to_save": ["embed_tokens"]}))
    assert shape.head == Weights(0, EMBEDDING)


def test_added_tokens_are_in_the_vocabulary(trained, tiny_model):
    # 380 tokens in 384 rows: seven more tokens need three more rows.
    model = {"name": str(tiny_model), "added_tokens": [f"<{n}>" for n in range(7)]}
    assert read_shape(trained(model=model)).vocabulary == 387


# Two layers with 4 experts of 24 × 32 (gate, up and down), a router, attention of 4 × 32 × 32 and 2 norms of 32 and 2
# of 16; a norm, the embedding and the head around them.
EXPERTS = 4 * 3 * 24 * 32
DENSE = 2 * (4 * 32 + 4 * 32 * 32 + 2 * 32 + 2 * 16) + 32 + 2 * 384 * 32


def test_all_experts_are_counted_and_the_time_of_a_pass_is_not_estimated(trained, tmp_path):
    of = trained(model={"name": str(write_tiny_experts(tmp_path)), "dtype": "float32"}, lora=None)
    shape = read_shape(of)
    assert shape.everything == Weights(0, 2 * EXPERTS + DENSE)
    assert shape.weight_bytes == 4 * (2 * EXPERTS + DENSE)
    assert shape.summed_bytes == 0
    found = estimate(of, Work([[[Batch(2, 30, 10)]]], 5))
    assert (found.seconds, found.untimed) == ([], "time is not estimated for models with experts")
    assert found.bytes > (4 + 4 + 8) * (2 * EXPERTS + DENSE)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapted_experts_are_kept_once_more_per_layer_unless_they_are_recomputed(trained, tmp_path, checkpointing):
    lora = {"r": 2, "target_modules": ["q_proj"], "target_parameters": ["gate_up_proj", "down_proj"]}
    model = {"name": str(write_tiny_experts(tmp_path, num_hidden_layers=6)), "dtype": "float32"}
    of = trained(model=model, lora=lora, training={"gradient_checkpointing": checkpointing})
    shape = read_shape(of)
    assert shape.summed_bytes == 4 * 6 * EXPERTS
    kept = Probe(of, shape, "cpu").kept_bytes()
    assert kept.layer[0] == pytest.approx(4 * EXPERTS, rel=0.05)
    sums = 2 if checkpointing else 7  # those of the layers that are kept, and the gradient of one
    step = [[Batch(9, 9, 9)]]
    without = peak(replace(shape, summed_bytes=0), replace(kept, layer=(0.0, *kept.layer[1:])), step)
    assert peak(shape, kept, step) - without == pytest.approx(sums * 4 * EXPERTS, rel=0.05)


def test_what_experts_keep_of_a_large_pass_follows_from_small_ones(trained, tmp_path):
    of = trained(model={"name": str(write_tiny_experts(tmp_path)), "dtype": "float32"}, lora={"r": 2})
    kept = Probe(of, read_shape(of), "cpu").kept_bytes()
    expected = (2 * np.array(kept.layer) + kept.around) @ [1, *Batch(3, 100, 60).sizes]
    assert bytes_kept_by(of.build("cpu"), rows=3, width=100, labelled=60) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
def test_quantised_weights_have_the_bytes_that_bitsandbytes_gives_them(trained, tiny_model, quantization):
    model: dict[str, Any] = {
        "name": str(tiny_model),
        "dtype": "bfloat16",
        "backend": "hf",
        "quantization": quantization,
    }
    lora: dict[str, Any] = {"r": 2}
    settings = TrainingSettings(chatml=True, max_length=64, gradient_checkpointing=False, seed=0)
    loaded = HfBackend().load_for_training(ModelConfig(**model), LoraConfig(**lora), settings=settings).model
    loaded(torch.arange(9)[None])  # LLM.int8() quantises in the first pass
    expected = sum(each.numel() * each.element_size() for each in loaded.parameters())
    for module in loaded.modules():
        if isinstance(module, Linear4bit):
            weight: Any = module.weight
            state = weight.quant_state
            expected += state.absmax.nbytes + state.state2.absmax.nbytes
        if isinstance(module, Linear8bitLt):
            scales: Any = module.state.SCB
            expected += scales.nbytes
    assert read_shape(trained(model=model, lora=lora)).weight_bytes == expected


def test_the_time_of_quantised_weights_is_not_estimated(trained, tiny_model):
    of = trained(model={"name": str(tiny_model), "quantization": "4bit"})
    assert estimate(of, Work([[[Batch(2, 30, 10)]]], 5)).untimed == "time is not estimated for quantised weights"


def test_a_convolution_is_not_guessed_at(trained, tiny_model, tmp_path):
    Lfm2Config(
        vocab_size=384,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        full_attn_idxs=[1],
    ).save_pretrained(tmp_path / "mixed")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "mixed")
    with pytest.raises(ModelError, match="belongs to a convolution, whose cost is unknown"):
        read_shape(trained(model={"name": str(tmp_path / "mixed")}, lora=None))


def test_the_arithmetic_of_a_pass_is_that_of_the_book():
    # 16 tokens. Forward: 2 per weight. Backward: 2 per weight, and 2 more per adapter weight. Attention, with 64 pairs
    # in each of 2 rows and 2 layers of 4 heads of 16: 2 forward and 4 backward.
    forward = 2 * 16 * (81_920 + 17_408) + 2 * 2 * 64 * 128
    backward = 2 * 16 * (81_920 + 2 * 17_408) + 4 * 2 * 64 * 128
    assert (forward, backward) == (3_211_264, 3_801_088)
    batch = Batch(rows=2, width=8, trained=5)
    assert flops(SHAPE, batch) == forward + backward
    assert flops(SHAPE, Batch(2, 8, 5, has_gradient=False)) == forward
    assert flops(checkpointed(SHAPE), batch) == 2 * forward + backward


def checkpointed(shape: ModelShape) -> ModelShape:
    return ModelShape(**{**vars(shape), "checkpointing": True})


def test_a_step_like_the_measured_one_takes_what_was_measured():
    # 2 layers at 10 ms, 1 ms around them, 100 tokens at 10 µs in the head, 17,408 trained weights at 1 ns.
    found = step_seconds(SHAPE, SECONDS, [[Batch(4, 64, trained=100)]])
    assert found == pytest.approx(2 * 0.01 + 0.001 + 100 * 1e-5 + 17_408e-9)
    compiled = ModelShape(**{**vars(SHAPE), "compiled": True})
    assert step_seconds(compiled, SECONDS, [[Batch(4, 64, trained=100)]]) < found


def test_two_processes_have_half_each_and_for_a_while_the_largest_matrices_five_times():
    batch = Batch(4, 64, trained=100)
    shared = ModelShape(**{**vars(SHAPE), "shared_by": 2})
    # 4 bytes for each of 106,816 + 17,408 weights, 8 more for the optimizer of the 17,408, which also have a gradient;
    # a layer has 40,960 + 8,704 weights, more than the 384 × 64 of the vocabulary.
    fixed, gradients, layer = 4 * (106_816 + 17_408) + 8 * 17_408, 4 * 17_408, 4 * (40_960 + 8_704)
    saved = peak(SHAPE, KEPT, [[batch], [batch]]) - peak(shared, KEPT, [[batch], [batch]])
    assert saved == pytest.approx(fixed / 2 + gradients / 2 - 5 * layer)


@given(batches, st.integers(0, 8), st.integers(0, 64))
def test_more_rows_and_more_tokens_cost_more(batch: Batch, rows: int, tokens: int):
    more = Batch(batch.rows + rows, batch.width + tokens, batch.trained)
    assert step_seconds(SHAPE, SECONDS, [[more]]) >= step_seconds(SHAPE, SECONDS, [[batch]])
    assert peak(SHAPE, KEPT, [[more]]) >= peak(SHAPE, KEPT, [[batch]])


@given(batches, batches)
def test_two_passes_whose_gradient_is_computed_together_keep_more_than_each_of_them(one: Batch, other: Batch):
    both = peak(SHAPE, KEPT, [[one, other]])
    assert both > max(peak(SHAPE, KEPT, [[batch]]) for batch in (one, other))
    # A pass without gradients keeps nothing.
    asked = Batch(other.rows, other.width, one.trained, has_gradient=False)
    assert peak(SHAPE, KEPT, [[one, asked]]) == peak(SHAPE, KEPT, [[one]])


@given(batches, batches)
def test_gradients_stay_from_one_micro_batch_to_the_next(one: Batch, other: Batch):
    apart = max(peak(SHAPE, KEPT, [[batch]]) for batch in (one, other))
    assert peak(SHAPE, KEPT, [[one], [other]]) == pytest.approx(apart + 4 * 17_408)


@given(batches)
def test_checkpointing_takes_more_time_and_on_more_layers_less_memory(batch: Batch):
    deep = ModelShape(**{**vars(SHAPE), "layers": 8})
    assert peak(checkpointed(deep), KEPT, [[batch]]) < peak(deep, KEPT, [[batch]])
    assert flops(checkpointed(deep), batch) > flops(deep, batch)


@given(st.integers(1, 10_000))
def test_steps_are_looked_at_from_the_first_to_the_last(count: int):
    steps = sampled_steps(count)
    assert (steps[0], steps[-1]) == (0, count - 1)
    assert len(steps) == min(count, 100)
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("lora", [{"r": 8}, None])
def test_what_is_kept_of_a_large_pass_follows_from_small_ones(trained, lora):
    of = trained(lora=lora)
    kept, layers = Probe(of, read_shape(of), "cpu").kept_bytes(), 2
    expected = (layers * np.array(kept.layer[1:]) + kept.around[1:]) @ Batch(3, 100, 60).sizes
    assert bytes_kept_by(of.build("cpu"), rows=3, width=100, labelled=60) == pytest.approx(expected, rel=0.03)


def bytes_kept_by(model: Any, rows: int, width: int, labelled: int) -> int:
    """Bytes that autograd saves for a pass, counting each storage once and no weights."""
    storages: dict[int, torch.UntypedStorage] = {}
    ids = torch.arange(rows * width).view(rows, width) % 380
    labels = torch.full_like(ids, -100)
    labels.view(-1)[:labelled] = 1
    head = LabelledHead(model)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        head.token_losses(model, ids, labels).sum()
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in storages.values())


def test_the_memory_of_a_run_is_within_a_factor_of_what_was_said(trained, written_config):
    said = estimate(trained(), Work([[[Batch(2, 40, 20)]]], 3), timed=False).bytes
    code = (
        "import sys; from pathlib import Path; from posttrain.config.load import load_config; "
        "from posttrain.sft.config import SFTConfig; from posttrain.sft.train import train; "
        "train(load_config(Path(sys.argv[1]), SFTConfig), 'run'); "
        "from posttrain.runs.finish import peak_memory_bytes; print(peak_memory_bytes())"
    )
    config = written_config(training={"rows_per_step": 4, "micro_batch_size": 2, "compile": False})
    done = subprocess.run([sys.executable, "-c", code, str(config)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 2 / 3 < said / int(done.stdout.split()[-1]) < 3 / 2


def test_a_limit_of_the_process_is_all_that_there_is():
    code = (
        "import resource; from posttrain.train.memory import available_bytes; "
        "hard = resource.getrlimit(resource.RLIMIT_AS)[1]; before = available_bytes('cpu'); "
        "resource.setrlimit(resource.RLIMIT_AS, (12 << 30, hard)); print(available_bytes('cpu'), before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    limited, before = map(float, done.stdout.split())
    assert 0 < limited <= min(before * 1.1, 12 << 30)
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    assert available_bytes("cpu") > 0


def found(**changes: Any) -> Estimate:
    values = {"seconds": [40.0, 44.0], "before": 0.0, "count": 100, "bytes": 2**31, "available": 2**33}
    return Estimate(**{**values, "on_cuda": False, "longest": 300, **changes})


def test_the_line_says_seconds_hours_and_memory():
    assert estimate_line(found()) == (
        "estimate        about 42 s per step (40 s to 44 s), 70 min in total, without evaluations; "
        "2.0 GiB of memory (8.0 GiB available)"
    )
    assert "3 h 03 min in total plus 4 min beforehand for the reference" in estimate_line(
        found(seconds=[1.1], count=10_000, before=240)
    )
    assert estimate_line(found(seconds=[], on_cuda=True, untimed="time is estimated on a CPU only")).endswith(
        "available); time is estimated on a CPU only"
    )
    assert "11.6 days in total" in estimate_line(found(seconds=[1000.0], count=1000))


def test_where_memory_is_short_the_plan_warns_and_says_what_to_change(written_config, capsys):
    config = load_config(written_config(), SFTConfig)
    show_estimate(config, lambda: found(bytes=2**34))
    shown = capsys.readouterr().err
    assert "WARNING         this is more memory than is available" in shown
    assert "                training.micro_batch_size: 2 → 1 (" in shown
    show_estimate(config, found)
    assert "WARNING" not in capsys.readouterr().err


def test_a_plan_does_not_fail_for_its_estimate(capsys):
    def fail() -> Estimate:
        raise ValueError("this model is\nof no known kind")

    show_estimate(TrainingConfig(), fail)
    assert capsys.readouterr().err == "estimate        none: this model is\n"


@pytest.mark.parametrize("changes", [{}, {"lora": None}, {"training": {"gradient_checkpointing": True}}])
def test_a_dry_run_says_what_the_run_would_cost(written_config, capsys, changes):
    show_plan(load_config(written_config(**changes), SFTConfig), "run")
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("estimate"))
    number = r"[\d.]+(e-\d+)?"
    assert re.fullmatch(
        rf"estimate        about {number} s per step \({number} s to {number} s\), {number} s in total, without "
        rf"evaluations; {number} GiB of memory \({number} GiB available\)",
        line,
    )
