"""Log-probabilities from a frozen head match the plain formula row by row, in values and gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.models.kernels.frozen_head import frozen_head_scores, rows_at_once


def plainly(hidden, weight, bias, labels, temperatures=None):
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    logits = logits if temperatures is None else logits / temperatures.unsqueeze(-1)
    spread = torch.log_softmax(logits, dim=-1)
    return spread.gather(-1, labels.unsqueeze(-1)).squeeze(-1), -(spread.exp() * spread).sum(-1)


def test_two_entries_of_logits_0_and_ln_3_have_probabilities_of_a_quarter_and_three_quarters():
    # W·h = (0, ln 3). log p(1) = ln(3/4), with gradient W₁ − ¾·W₁ = ¼·ln 3 in h; the entropy is ¼·ln 4 + ¾·ln(4/3).
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [math.log(3)]])
    logprobs, entropies = frozen_head_scores(hidden, weight, None, torch.tensor([1]), entropies=True)
    (10 * logprobs.sum()).backward()
    assert logprobs.item() == pytest.approx(math.log(3 / 4))
    assert entropies is not None and entropies.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))
    assert hidden.grad is not None and hidden.grad.item() == pytest.approx(10 * math.log(3) / 4)


def test_a_temperature_of_2_halves_the_logits_and_once_more_the_slope():
    # W·h / 2 = (0, ln 3): as above, with W₁ twice as large and the gradient halved.
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [2 * math.log(3)]])
    logprobs, _ = frozen_head_scores(hidden, weight, None, torch.tensor([1]), torch.tensor([2.0]))
    logprobs.sum().backward()
    assert logprobs.item() == pytest.approx(math.log(3 / 4))
    assert hidden.grad is not None and hidden.grad.item() == pytest.approx(math.log(3) / 4)


def test_half_of_a_smoothed_label_is_spread_over_the_vocabulary():
    # W·h = (0, ln 3): log p = (ln ¼, ln ¾). ½·ln ¾ + ½·(ln ¼ + ln ¾) / 2, with gradient (½ + ¼ − ¾)·W₁ = 0 in h.
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [math.log(3)]])
    found, _ = frozen_head_scores(hidden, weight, None, torch.tensor([1]), smoothing=0.5)
    found.sum().backward()
    assert found.item() == pytest.approx(0.75 * math.log(3 / 4) + 0.25 * math.log(1 / 4))
    assert hidden.grad is not None and hidden.grad.item() == pytest.approx(0, abs=1e-6)


@given(tokens=st.sampled_from([1, 130]), hot=st.booleans(), smoothing=st.floats(0.01, 0.9), seed=st.integers(0, 2**31))
def test_smoothed_values_and_gradients_are_those_of_torch(tokens, hot, smoothing, seed):
    torch.manual_seed(seed)
    weight, labels, factors = torch.randn(50, 8), torch.randint(0, 50, (tokens,)), torch.randn(tokens)
    one = torch.randn(tokens, 8).requires_grad_()
    other = one.detach().clone().requires_grad_()
    temperatures = torch.rand(tokens) + 0.5 if hot else None
    logits = one @ weight.T / (1 if temperatures is None else temperatures.unsqueeze(-1))
    expected = -torch.nn.functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    found, _ = frozen_head_scores(other, weight, None, labels, temperatures, smoothing=smoothing)
    (expected * factors).sum().backward()
    (found * factors).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


@given(
    tokens=st.sampled_from([0, 1, 127, 128, 129, 300]),  # 128 rows are computed at a time
    hot=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_values_and_gradients_are_those_of_the_plain_formula(tokens, hot, biased, seed):
    torch.manual_seed(seed)
    weight, bias = torch.randn(50, 8), torch.randn(50) if biased else None
    labels, factors = torch.randint(0, 50, (tokens,)), torch.randn(tokens)
    one = torch.randn(tokens, 8).requires_grad_()
    other = one.detach().clone().requires_grad_()
    temperatures = torch.rand(tokens) + 0.5 if hot else None
    expected, spread = plainly(one, weight, bias, labels, temperatures)
    found, entropies = frozen_head_scores(other, weight, bias, labels, temperatures, entropies=True)
    (expected * factors).sum().backward()
    (found * factors).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies, spread, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


def test_bfloat16_comes_as_close_as_the_plain_formula_in_bfloat16():
    torch.manual_seed(0)
    weight, labels = torch.randn(1000, 64) / 8, torch.randint(0, 1000, (200,))
    exact = torch.randn(200, 64).requires_grad_()
    expected, _ = plainly(exact, weight, None, labels)
    expected.sum().backward()
    errors = []
    for scores in (plainly, frozen_head_scores):
        hidden = exact.detach().bfloat16().requires_grad_()
        logprobs, _ = scores(hidden, weight.bfloat16(), None, labels)
        assert logprobs.dtype is torch.float32
        logprobs.sum().backward()
        errors.append(((logprobs - expected).abs().mean().item(), (hidden.grad - exact.grad).abs().mean().item()))
    (plain_value, plain_slope), (value, slope) = errors
    assert value <= 1.1 * plain_value
    assert slope <= 1.3 * plain_slope


def test_without_gradient_nothing_is_kept_for_it():
    with torch.no_grad():
        logprobs, entropies = frozen_head_scores(torch.ones(2, 4), torch.ones(3, 4), None, torch.tensor([0, 2]))
    assert not logprobs.requires_grad
    assert entropies is None


def test_a_device_with_memory_of_its_own_takes_a_gibibyte_of_logits_at_once_and_never_fewer_rows_than_a_cpu():
    cuda = torch.device("cuda")
    # 2³⁰ / (12 × 49,152) = 1820.4
    assert [rows_at_once(cuda, size) for size in (49_152, 2**30)] == [1820, 128]
    assert rows_at_once(torch.device("cpu"), 49_152) == 128
