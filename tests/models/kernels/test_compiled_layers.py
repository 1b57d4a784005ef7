"""When layers are compiled, and that compiling does not change training."""

import pytest
import torch
from transformers import PreTrainedConfig

from posttrain.config.sections.model import LoraConfig
from posttrain.errors import ModelError
from posttrain.models.kernels.compiled_layers import as_written, compile_layers, should_compile
from posttrain.models.kernels.labelled_head import LabelledHead

CPU = torch.device("cpu")


@pytest.fixture
def big():
    """A model that reports 135 M parameters and takes no memory."""
    model = torch.nn.Linear(135_000, 1000, bias=False, device="meta")
    model.config = PreTrainedConfig()
    return model


@pytest.mark.parametrize(("rows", "expected"), [(999, False), (1000, True)])
def test_left_to_itself_it_compiles_where_training_takes_minutes(big, rows, expected, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    assert should_compile(None, big, CPU, rows) is expected
    assert should_compile(True, big, CPU, rows) is True
    assert should_compile(False, big, CPU, rows) is False


def test_left_to_itself_it_compiles_neither_for_a_gpu_nor_experts(big):
    assert not should_compile(None, big, torch.device("cuda"), 10_000)
    big.config.num_experts = 8
    assert not should_compile(None, big, CPU, 10_000)


def test_without_a_compiler_it_is_left_or_refused(big, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not should_compile(None, big, CPU, 10_000)
    with pytest.raises(ModelError, match=r"training\.compile: true needs a C\+\+ compiler"):
        should_compile(True, big, CPU, 10_000)


@pytest.fixture(scope="module")
def compiled_and_plain(train):
    models = [train(LoraConfig(r=2)).model for _ in range(2)]
    for model in models:
        generator = torch.Generator().manual_seed(3)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # it starts at 0, which hides A
                parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    torch.manual_seed(11)
    compile_layers(models[0], 3, torch.float32)
    drawn = torch.rand(1)
    torch.manual_seed(11)
    assert drawn == torch.rand(1)  # compiling changes no random state and leaves no gradients
    assert all(parameter.grad is None for parameter in models[0].parameters())
    return [(LabelledHead(model), model) for model in models]


@pytest.mark.parametrize("shape", [(3, 40), (2, 17)])
def test_losses_and_gradients_are_those_of_the_layers_as_written(compiled_and_plain, shape):
    torch.manual_seed(sum(shape))
    ids = torch.randint(3, 300, shape)
    labels = ids.roll(-1, dims=1)
    labels[:, -1] = -100
    found = []
    for head, model in compiled_and_plain:
        losses = head.token_losses(model.train(), ids, labels)
        losses.sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        found.append([losses, *gradients])
    assert len(found[0]) == len(found[1]) > 10
    for ours, plain in zip(*found, strict=True):
        assert float((ours - plain).norm()) < 1e-3 * float(plain.norm())


def test_a_pass_with_a_cache_goes_through_the_layers_as_written(compiled_and_plain):
    (_, compiled), (_, plain) = compiled_and_plain
    ids = torch.randint(3, 300, (1, 12))
    with torch.no_grad(), as_written(compiled), as_written(plain):
        first = compiled(input_ids=ids[:, :8], use_cache=True)
        rest = compiled(input_ids=ids[:, 8:], past_key_values=first.past_key_values)
        whole = plain(input_ids=ids)
    torch.testing.assert_close(rest.logits, whole.logits[:, 8:], rtol=1e-3, atol=1e-4)
