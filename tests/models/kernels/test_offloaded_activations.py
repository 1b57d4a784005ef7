"""Activations that are kept elsewhere until the backward pass; on a CPU they are copied there and back as on CUDA."""

import pytest
import torch
from torch import nn

from posttrain.config.sections.model import LoraConfig
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.offloaded_activations import activations_on_cpu


@pytest.mark.parametrize("lora", [LoraConfig(r=2), None], ids=["lora", "full"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_losses_and_gradients_are_those_of_activations_that_stay(train, lora, checkpointing):
    model = train(lora, checkpointing=checkpointing).model.train()
    head, ids = LabelledHead(model), torch.arange(3, 43).view(2, 20)
    labels = ids.roll(-1, dims=1)
    found = []
    for context in (torch.enable_grad(), activations_on_cpu(model)):
        with context:
            losses = head.token_losses(model, ids, labels)
        losses.sum().backward()
        found.append([losses.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)])
        model.zero_grad()
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_activations_are_copied_and_weights_are_not():
    layer, activations = nn.Linear(3, 4, bias=False), torch.ones(2, 3, requires_grad=True)
    with activations_on_cpu(layer):
        saved = (layer(activations) * 1.0).grad_fn.next_functions[0][0]
    assert torch.equal(saved._saved_self, activations)
    assert saved._saved_self.data_ptr() != activations.data_ptr()
    assert saved._saved_mat2.data_ptr() == layer.weight.data_ptr()


def test_weights_in_the_dtype_of_autocast_stay_as_well():
    layer = nn.Linear(3, 4)
    hooks = activations_on_cpu(layer)
    for weight in (layer.weight, layer.weight.bfloat16(), layer.weight.bfloat16().T):
        assert isinstance(hooks.pack_hook(weight), torch.Tensor)
    assert isinstance(hooks.pack_hook(torch.ones(2, 3)), tuple)
