"""What the processes that share a model compute and write together is what one process does."""

import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from posttrain.base.processes import is_main_process
from posttrain.base.user_code import error_in_words
from posttrain.errors import ModelError
from posttrain.inference.loaded import write_trained
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.weights.checkpoint import save_adapter
from posttrain.models.weights.merged import write_merged_weights
from posttrain.models.weights.sharding import copy_whole, require_unscaled, shard, whole, whole_tensors
from posttrain.train.optim.saved_states import save_states
from ranks.connected_ranks import on_ranks

ADAPTERS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "DoRA": {"use_dora": True},
    "modules to save": {"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
    "two matrices": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "a head of its own": {},
}
WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "merged": lambda model, folder: write_merged_weights(model, folder, torch.float32),
    "adapter": lambda model, folder: save_adapter(model, folder, save_embedding_layers=False),
    "trained": write_trained,
}


def adapted(model: Path, kind: str) -> Any:
    """The model with an adapter that changes it."""
    torch.manual_seed(0)
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if kind in ("two matrices", "a head of its own"):
        base.config.tie_word_embeddings = False
        base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().flip(0).clone())
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], **ADAPTERS[kind])
    found: Any = get_peft_model(base, config)
    for name, weight in found.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return found


def write_all(model: Any, folder: Path) -> None:
    for name, write in WRITERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        write(model, folder / name)


def write_shared(model: Path, kind: str, folder: Path) -> None:
    """Write the shared model; only the main process's files are there."""
    shared = adapted(model, kind)
    shard(shared, torch.device("cpu"))
    write_all(shared, folder)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_files_are_those_of_one_process(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    write_all(adapted(tiny_model, kind), tmp_path / "one")
    on_ranks(write_shared, tmp_path, tiny_model, kind, tmp_path / "two", ranks=3)
    for file in (tmp_path / "one").rglob("*.safetensors"):
        weights, others = (load_file(each) for each in (file, tmp_path / "two" / file.relative_to(tmp_path / "one")))
        assert weights.keys() == others.keys()
        assert all(torch.equal(others[name], each) for name, each in weights.items())


def test_what_needs_a_scaled_loss_is_refused() -> None:
    require_unscaled(torch.bfloat16)
    with pytest.raises(ModelError, match="float16"):
        require_unscaled(torch.float16)


def cut_and_whole() -> list[tuple[list[int], bool]]:
    """For matrices of 5 rows and 1, in two processes: the shape of this one's share, and whether the whole is right."""
    found = []
    for rows in (5, 1):
        layer: Any = torch.nn.Linear(3, rows, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(rows * 3.0).view(rows, 3))
        expected = layer.weight.detach().clone()
        shard(layer, torch.device("cpu"))
        local = list(layer.weight.to_local().shape)
        copy_whole(2 * expected, layer.weight)
        found.append((local, bool(torch.equal(whole(layer.weight), 2 * expected))))
    return found


def test_rows_are_dealt_out_as_evenly_as_they_come(tmp_path: Path) -> None:
    first, second = on_ranks(cut_and_whole, tmp_path)
    assert first == [([3, 3], True), ([1, 3], True)]
    assert second == [([2, 3], True), ([0, 3], True)]


def labelled_rows(model: Path, kind: str) -> int:
    """Rows of logits that the frozen head of a shared model computes for a pass with 3 labels."""
    shared = adapted(model, kind)
    shard(shared, torch.device("cpu"))
    head, rows = LabelledHead(shared), []
    shared.get_output_embeddings().register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    labels = torch.tensor([[-100, 5, 6, 7]])
    head.token_losses(shared, torch.tensor([[4, 5, 6, 7]]), labels).sum().backward()
    return rows[-1]


@pytest.mark.parametrize("kind", ["LoRA", "a head of its own"])
def test_a_frozen_head_keeps_no_logits(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    assert on_ranks(labelled_rows, tmp_path, tiny_model, kind) == [0, 0]


def gathered_names(model: Path) -> tuple[list[str], bool]:
    """The names that this process keeps of a shared model's tensors, and whether they have their whole values."""
    shared, original = adapted(model, "LoRA"), adapted(model, "LoRA")
    shard(shared, torch.device("cpu"))
    found = whole_tensors(shared.state_dict(keep_vars=True), keep=is_main_process())
    expected = original.state_dict()
    return sorted(found), all(torch.equal(found[name], expected[name]) for name in found)


def test_only_the_process_that_writes_keeps_what_is_gathered(tmp_path: Path, tiny_model: Path) -> None:
    main, other = on_ranks(gathered_names, tmp_path, tiny_model)
    assert main == (sorted(adapted(tiny_model, "LoRA").state_dict()), True)
    assert other == ([], True)


class Inner(GradientCheckpointingLayer):
    """A layer within another one, as Zamba2's are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.tanh(self.linear(values))


class Outer(GradientCheckpointingLayer):
    """A layer that consists of two others, of which one is used by all such layers."""

    def __init__(self, common: Inner) -> None:
        super().__init__()
        self.own, self.common = Inner(), common

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.common(self.own(values))


def nested() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(Outer(Inner()), Outer(Inner()), torch.nn.Linear(4, 1))


def gradients(*, shared: bool) -> dict[str, Any]:
    """Those of a model with layers within layers."""
    model = nested()
    if shared:
        shard(model, torch.device("cpu"))
    model(torch.arange(12.0).view(3, 4) / 12).sum().backward()
    found = {name: each.grad for name, each in model.named_parameters()}
    return {name: whole(each).tolist() for name, each in found.items() if each is not None}


def test_layers_within_layers_have_the_gradients_of_one_process(tmp_path: Path) -> None:
    expected = gradients(shared=False)
    assert len(expected) == 10
    for found in on_ranks(partial(gradients, shared=True), tmp_path):
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert_close(torch.tensor(found[name]), torch.tensor(values))


def told_of_a_full_disk(folder: Path) -> str:
    """What `save_states` raises where the second process can write files of 4,096 bytes only."""
    model = torch.nn.Linear(256, 256)
    shard(model, torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    if not is_main_process():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        save_states([optimizer], folder)
    except OSError as error:
        return error_in_words(error)
    return ""


def test_a_full_disk_of_any_process_is_told_as_such_by_all(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    told = on_ranks(told_of_a_full_disk, tmp_path, tmp_path / "states")
    assert all("File too large" in each for each in told), told
