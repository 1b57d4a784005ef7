"""Attention with its own backward pass, compared with torch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from posttrain.models.kernels.recomputed_attention import masked_attention, recomputed_attention


def tensors(batch: int, heads: int, key_heads: int, tokens: int, width: int = 8) -> list[torch.Tensor]:
    torch.manual_seed(tokens)
    # Laid out as in a model: heads are split from the last dimension.
    shapes = [(batch, tokens, count, width) for count in (heads, key_heads, key_heads)]
    return [torch.randn(shape).transpose(1, 2).requires_grad_() for shape in shapes]


def ours(query, key, value, scaling):
    return masked_attention(query, key, value, None, scaling)


def torchs(query, key, value, scaling):
    group = query.shape[1] // key.shape[1]
    keys, values = (part.repeat_interleave(group, dim=1) for part in (key, value))
    return functional.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scaling)


@settings(deadline=None, max_examples=30)
@given(batch=st.integers(1, 3), key_heads=st.integers(1, 3), group=st.integers(1, 3), tokens=st.integers(2, 40))
def test_output_and_gradients_are_those_of_torchs_attention(batch, key_heads, group, tokens):
    found = []
    for attention in (ours, torchs):
        inputs = tensors(batch, key_heads * group, key_heads, tokens)
        output = attention(*inputs, 0.3)
        (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum().backward()
        found.append([output, *(each.grad for each in inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_token_that_sees_itself_alone_and_one_that_sees_two():
    # One head of one number. Token 0 sees itself, so its output is its value, 5. Token 1 scores 0 and ln 3 against keys
    # 0 and ln 3, so its shares are 1/4 and 3/4: 5/4 + 9·3/4 = 8. The gradient of value 0 is 1 + 1/4.
    query = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1).requires_grad_()
    key = torch.tensor([0.0, torch.log(torch.tensor(3.0)).item()]).view(1, 1, 2, 1).requires_grad_()
    value = torch.tensor([5.0, 9.0]).view(1, 1, 2, 1).requires_grad_()
    output = masked_attention(query, key, value, None, 1.0)
    output.sum().backward()
    assert output.flatten().tolist() == pytest.approx([5, 8])
    assert value.grad.flatten().tolist() == pytest.approx([1.25, 0.75])
    # d(output)/d(score 0) = 1/4·(5 − 8) and the opposite for score 1; scores are query times key.
    assert key.grad.flatten().tolist() == pytest.approx([-0.75, 0.75])


@pytest.mark.parametrize("tokens", [16, 600])
def test_transformers_gets_the_same_from_it_compiled_or_not_and_however_long(tokens):
    module = torch.nn.Module()
    module.num_key_value_groups = 2  # as in an attention layer of transformers
    found = []
    for attention in (recomputed_attention, torch.compile(recomputed_attention, dynamic=True)):
        inputs = tensors(1, 4, 2, tokens)
        output, _ = attention(module, *inputs, None, scaling=0.3)
        output.square().sum().backward()
        found.append([output, *(each.grad for each in inputs)])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_a_new_token_attends_as_it_would_with_keys_copied_for_each_head(masked):
    # Two rows of 7 tokens, of which the first two of row 1 are padding; 4 heads share 2 key heads.
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    query, key, value = (part.detach() for part in tensors(2, 4, 2, 7))
    mask = None
    if masked:
        mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
        mask[1, ..., :2] = False
    found, _ = recomputed_attention(module, query[:, :, -1:], key, value, mask, scaling=0.3)
    copied = (part.repeat_interleave(2, dim=1) for part in (key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(query[:, :, -1:], *copied, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(found, expected.transpose(1, 2), rtol=1e-5, atol=1e-6)


def test_padding_that_neighbouring_rows_share_is_not_read_for_a_new_token():
    # 40 rows of 9 tokens, the longest first: 3, 5 and 7 of them are padding, in 16, 16 and 8 rows.
    padding = torch.tensor([3] * 16 + [5] * 16 + [7] * 8)
    mask = (torch.arange(9) >= padding[:, None]).view(40, 1, 1, 9)
    query, key, value = (part.detach() for part in tensors(40, 4, 2, 9))
    copied = (part.repeat_interleave(2, dim=1) for part in (key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(query[:, :, -1:], *copied, attn_mask=mask, scale=0.3)
    for part in (key, value):
        part.masked_fill_(~mask.view(40, 1, 9, 1), float("nan"))
    found, _ = recomputed_attention(torch.nn.Module(), query[:, :, -1:], key, value, mask, scaling=0.3)
    torch.testing.assert_close(found, expected.transpose(1, 2), rtol=1e-5, atol=1e-6)


def test_a_mask_is_obeyed():
    inputs = tensors(1, 2, 2, 6)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    mask[..., 0] = False
    mask[..., 0, 0] = True
    output, _ = recomputed_attention(torch.nn.Module(), *inputs, mask, scaling=0.3)
    inputs[2].data[:, :, 0] += 100  # the first value, which only the first token may see
    changed, _ = recomputed_attention(torch.nn.Module(), *inputs, mask, scaling=0.3)
    torch.testing.assert_close(changed[:, 1:], output[:, 1:])
    assert not torch.allclose(changed[:, 0], output[:, 0])


@pytest.mark.parametrize(("device", "is_ours"), [("cpu", True), ("meta", False)])
def test_a_compiler_is_given_the_attention_of_cpus_on_a_cpu_alone(device, is_ours):
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    module = torch.nn.Module()
    module.num_key_value_groups = 1
    inputs = [torch.zeros(1, 2, 4, 8, device=device, requires_grad=True) for _ in range(3)]
    torch._dynamo.reset()
    torch.compile(recomputed_attention, backend=keep, fullgraph=True)(module, *inputs, None, scaling=0.3)
    (graph,) = graphs
    called = {str(node.target) for each in graph.modules() for node in each.graph.nodes}
    assert any("_flash_attention_for_cpu" in name for name in called) is is_ours
