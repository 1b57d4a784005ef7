"""Options that need a CUDA device or an extra package are refused before loading, with what to set instead."""

import pytest
import torch

from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ConfigError
from posttrain.train import session
from posttrain.train.session import require_kernels


@pytest.fixture
def cuda(monkeypatch):
    """`cuda(True)` simulates a machine with a CUDA device, `cuda(False)` one without."""
    return lambda there: monkeypatch.setattr(torch.cuda, "is_available", lambda: there)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "adamw_8bit"}, r"^training\.optimizer: adamw_8bit needs a CUDA device; set it to adamw$"),
        ({"liger_kernel": True}, r"^training\.liger_kernel needs a CUDA device; set it to false$"),
        ({"offload_activations": True}, r"^training\.offload_activations needs a CUDA device; set it to false$"),
        ({"offload_embeddings": True}, r"^training\.offload_embeddings needs a CUDA device; set it to false$"),
    ],
)
@pytest.mark.parametrize("backend", ["hf", "unsloth"])
def test_cuda_kernels_are_refused_where_there_is_no_cuda(training, message, backend, cuda):
    cuda(False)
    with pytest.raises(ConfigError, match=message):
        require_kernels(TrainingConfig(**training), backend)


def test_liger_is_refused_where_unsloth_has_kernels_of_its_own(cuda):
    cuda(True)
    with pytest.raises(ConfigError, match=r"^training\.liger_kernel: unsloth has kernels .*; set it to false, or back"):
        require_kernels(TrainingConfig(liger_kernel=True), "unsloth")


def test_activations_are_left_to_unsloth_where_it_moves_them_itself(cuda):
    cuda(True)
    require_kernels(TrainingConfig(offload_activations=True), "hf")
    with pytest.raises(ConfigError, match=r"^training\.offload_activations: unsloth .* to false, or backend: hf"):
        require_kernels(TrainingConfig(offload_activations=True), "unsloth")


@pytest.mark.parametrize(
    ("training", "start", "message"),
    [
        ({"offload_embeddings": True}, None, r"^training\.offload_embeddings: not with unsloth; .* or backend: hf$"),
        ({}, "loftq", r"^lora\.init: unsloth's kernels pass over .* or backend: hf$"),
    ],
)
def test_what_unsloths_layers_would_pass_over_is_refused(training, start, message, cuda):
    cuda(True)
    require_kernels(TrainingConfig(**training), "hf", start)
    with pytest.raises(ConfigError, match=message):
        require_kernels(TrainingConfig(**training), "unsloth", start)


def test_liger_is_refused_where_it_is_not_installed(cuda, monkeypatch):
    cuda(True)
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed here: pip install liger-kernel"):
        require_kernels(TrainingConfig(liger_kernel=True), "hf")


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_refused_that_needs_nothing(cuda, there):
    cuda(there)
    require_kernels(TrainingConfig(), "hf")
    require_kernels(TrainingConfig(optimizer="sgd"), "unsloth")
    if there:
        require_kernels(TrainingConfig(optimizer="adamw_8bit"), "unsloth")
