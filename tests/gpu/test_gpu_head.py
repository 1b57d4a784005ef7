"""The frozen head on CUDA, which takes more rows at once, matches the plain formula in values and gradients."""

import pytest
import torch

from posttrain.models.kernels.frozen_head import frozen_head_scores, rows_at_once

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unequal_weights_and_temperatures_over_several_pieces(dtype: torch.dtype) -> None:
    vocabulary, device = 32_000, torch.device("cuda")
    tokens = rows_at_once(device, vocabulary) + 7
    torch.manual_seed(0)
    weight = torch.randn(vocabulary, 64, device=device, dtype=dtype)
    labels = torch.randint(0, vocabulary, (tokens,), device=device)
    temperatures, factors = 0.5 + torch.rand(tokens, device=device), torch.randn(tokens, device=device)
    hidden = torch.randn(tokens, 64, device=device, dtype=dtype, requires_grad=True)
    plain = hidden.detach().clone().requires_grad_()

    found, _ = frozen_head_scores(hidden, weight, None, labels, temperatures)
    (found * factors).sum().backward()
    logits = (plain @ weight.T).float() / temperatures.unsqueeze(-1)
    wanted = torch.log_softmax(logits, dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    (wanted * factors).sum().backward()

    within = {torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(found, wanted, atol=within, rtol=within)
    torch.testing.assert_close(hidden.grad, plain.grad, atol=within, rtol=within)
