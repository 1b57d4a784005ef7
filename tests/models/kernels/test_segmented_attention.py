"""Attention within the segments of one sequence is plain attention over what each segment sees."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posttrain.models.kernels.segmented_attention import Segment, Varlen, attention_inputs, segmented_attention

CPU = torch.device("cpu")
HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def by_softmax(query: Tensor, key: Tensor, value: Tensor, segments: list[Segment]) -> Tensor:
    """softmax(query · key / √width) · value over the visible tokens, written out for each token."""
    key, value = (part.repeat_interleave(HEADS // KEY_HEADS, dim=1) for part in (key, value))
    rows = []
    for each in segments:
        for token in range(each.first, each.end):
            seen = [*range(each.prefix, each.prefix_end), *range(each.first, token + 1)]
            shares = torch.einsum("hd,hkd->hk", query[0, :, token], key[0, :, seen]).div(WIDTH**0.5).softmax(-1)
            rows.append(torch.einsum("hk,hkd->hd", shares, value[0, :, seen]))
    return torch.stack(rows).unsqueeze(0)


def drawn(tokens: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (HEADS, KEY_HEADS, KEY_HEADS)
    made = [torch.randn(1, tokens, heads, WIDTH, generator=generator, dtype=torch.float64) for heads in sizes]
    return [part.transpose(1, 2).float().requires_grad_() for part in made]


def require_softmax(prompt: int, sizes: list[tuple[int, bool]]) -> None:
    """Compare a prompt and rows, each with its length and whether it sees the prompt, with `by_softmax`."""
    segments = [Segment(0, prompt)]
    for length, has_prefix in sizes:
        end = segments[-1].end
        segments.append(Segment(end, end + length, 0, prompt if has_prefix else 0))
    found = []
    for attend in (
        lambda *parts: segmented_attention(*parts, None, **attention_inputs(segments, CPU)),
        lambda *parts: by_softmax(*parts, segments),
    ):
        parts = drawn(segments[-1].end)
        output = attend(*parts)
        (output * torch.linspace(-1, 2, output.numel()).view(output.shape)).sum().backward()
        found.append([output, *(part.grad for part in parts)])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=5))
def test_outputs_and_gradients_are_those_of_softmax(prompt: int, sizes: list[tuple[int, bool]]) -> None:
    require_softmax(prompt, sizes)


def test_long_segments_are_computed_in_parts() -> None:
    require_softmax(300, [(300, False), (270, True)])  # gradients come for 256 tokens at a time


def test_the_operators_tell_the_compiler_what_they_do() -> None:
    parts = drawn(7)
    inputs = attention_inputs([Segment(0, 3), Segment(3, 5), Segment(5, 7, 0, 3)], CPU)
    torch.library.opcheck(
        torch.ops.posttrain.segmented_attention.default,
        (*parts, inputs["segments"], 0.3),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_other_segments_cause_no_further_compilation() -> None:
    compiled = []

    def as_traced(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=as_traced, dynamic=True)
    def layer(query: Tensor, key: Tensor, value: Tensor, segments: Tensor) -> Tensor:
        return segmented_attention(query * 2, key, value, 0.5, segments) + 1

    for lengths in ([128], [5], [3, 4], [2, 2, 9], [1, 1], [40], [7] * 12):
        ends = torch.tensor(lengths).cumsum(0).tolist()
        segments = [Segment(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        layer(*drawn(ends[-1]), attention_inputs(segments, CPU)["segments"]).sum().backward()
    assert len(compiled) == 1


def test_for_cuda_the_keys_of_a_segment_are_its_prefix_and_itself() -> None:
    # A prompt of 3 tokens, a row of 2 that sees it, and a row of 1 that does not.
    varlen = Varlen.of([Segment(0, 3), Segment(3, 5, 0, 3), Segment(5, 6)], CPU)
    assert varlen.keys.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert [each.tolist() for each in varlen.ends] == [[0, 3, 5, 6], [0, 3, 8, 9]]
    assert varlen.longest == (3, 5)


@pytest.mark.parametrize("scaling", [None, 0.7])
def test_queries_are_computed_in_the_dtype_of_the_values(scaling: float | None) -> None:
    query, key, value = drawn(4)
    found = segmented_attention(query, key, value.bfloat16(), scaling, **attention_inputs([Segment(0, 4)], CPU))
    assert found.dtype is torch.bfloat16
