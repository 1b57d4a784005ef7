"""Both rows of a pair joined into one text with a single prompt give the same numbers as separate rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from posttrain.conversation.masks import IGNORED_LABEL, TokenRow
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.ledger import Ledger
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.datasets import PairedDataset
from posttrain.dpo.passes import Pass, Text, inputs_of, plan_passes, takes_joined_rows
from posttrain.dpo.run_rows import RunRows, numbered_rows
from posttrain.dpo.scores import answer_logprobs
from posttrain.models.kernels.labelled_head import LabelledHead
from token_rows import from_rows

N = IGNORED_LABEL
# A prompt of 3 tokens with answers of 2 and 3, and a single row. The last token of a row is only a label.
INPUTS = torch.tensor([[5, 6, 7, 20, 0], [8, 9, 0, 0, 0], [5, 6, 7, 30, 31]])
LABELS = torch.tensor([[N, N, 20, 21, N], [9, 10, N, N, N], [N, N, 30, 31, 32]])
BOTH, ALONE = Text((0, 2), (4, 5), shared=2), Text((1,), (2,))


def test_a_joined_text_is_prompt_first_answer_and_second_answer() -> None:
    inputs, labels, more = inputs_of(Pass((BOTH, ALONE), 7), INPUTS, LABELS)
    assert inputs[0].tolist() == [5, 6, 7, 20, 7, 30, 31]
    assert labels[0].tolist() == [N, N, 20, 21, 30, 31, 32]
    assert more["position_ids"][0].tolist() == [0, 1, 2, 3, 2, 3, 4]
    seen = more["attention_mask"][0, 0].int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 1, 0],
        [1, 1, 0, 0, 1, 1, 1],
    ]


def test_a_row_beside_a_joined_text_sees_itself_and_what_pads_it_sees_something() -> None:
    inputs, labels, more = inputs_of(Pass((BOTH, ALONE), 7), INPUTS, LABELS)
    assert inputs[1, :2].tolist() == [8, 9]
    assert labels[1].tolist() == [9, 10, N, N, N, N, N]
    seen = more["attention_mask"][1, 0]
    assert seen[:2, :2].tolist() == [[True, False], [True, True]]
    assert not seen[:2, 2:].any() and not seen[2:, :2].any()
    assert seen.any(dim=1).all()


def test_rows_that_are_not_joined_need_no_mask() -> None:
    inputs, labels, more = inputs_of(Pass((Text((2,), (5,)), ALONE), 5), INPUTS, LABELS)
    assert (inputs.tolist(), labels.tolist()) == (INPUTS[[2, 1]].tolist(), LABELS[[2, 1]].tolist())
    assert not more


def pairs(sizes: Sequence[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    """Inputs, labels, lengths and shared tokens of random pairs; a size is (prompt, chosen, rejected)."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(3, 380, prompt).tolist() for prompt, _, _ in sizes]
    answers = [draw.integers(3, 380, each[side]).tolist() for side in (1, 2) for each in sizes]
    rows = [(prompts[row % len(sizes)], answer) for row, answer in enumerate(answers)]
    lengths = [len(prompt) + len(answer) - 1 for prompt, answer in rows]
    inputs = torch.zeros((len(rows), max(lengths)), dtype=torch.long)
    labels = torch.full_like(inputs, IGNORED_LABEL)
    for row, (prompt, answer) in enumerate(rows):
        ids = torch.tensor(prompt + answer)
        inputs[row, : lengths[row]] = ids[:-1]
        labels[row, len(prompt) - 1 : lengths[row]] = ids[len(prompt) :]
    return inputs, labels, lengths, [prompt - 1 for prompt, _, _ in sizes]


def joined_pass(lengths: list[int], shared: list[int]) -> Pass:
    """One pass with all pairs joined."""
    texts = tuple(
        Text((pair, pair + len(shared)), (lengths[pair], lengths[pair + len(shared)]), tokens)
        for pair, tokens in enumerate(shared)
    )
    return Pass(texts, max(text.length for text in texts))


def llama(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def with_learnt_positions(tiny_model: Path) -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=384, n_positions=64, n_embd=64, n_layer=2, n_head=2)).eval()


def with_a_window(tiny_model: Path) -> Any:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=384, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=4,
    )  # fmt: skip
    return MistralForCausalLM(config)


def with_a_state(tiny_model: Path) -> Any:
    torch.manual_seed(0)
    return MambaForCausalLM(MambaConfig(vocab_size=384, hidden_size=64, num_hidden_layers=1, state_size=4))


def with_plain_attention(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return llama(tiny_model)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4))
def test_answers_of_all_lengths_have_the_log_probabilities_of_rows_apart(
    model: Any, sizes: list[tuple[int, int, int]]
) -> None:
    inputs, labels, lengths, shared = pairs(sizes)
    head = LabelledHead(model)
    try:
        with torch.no_grad():
            apart = answer_logprobs(head, model, inputs, labels)
            joined = answer_logprobs(head, model, inputs, labels, [joined_pass(lengths, shared)])
    finally:
        head.detach()
    torch.testing.assert_close(joined, apart, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [llama, with_learnt_positions])
@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_gradients_are_those_of_rows_apart(kind: Callable[[Path], Any], recomputed: bool, tiny_model: Path) -> None:
    inputs, labels, lengths, shared = pairs([(20, 3, 5), (7, 6, 1), (1, 2, 2)])
    found = []
    for passes in (None, [joined_pass(lengths, shared)]):
        model = kind(tiny_model).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if recomputed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        logprobs = answer_logprobs(LabelledHead(model), model, inputs, labels, passes)
        (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
        found.append((logprobs.detach(), [parameter.grad for parameter in model.parameters()]))
    (apart, gradients), (joined, joined_gradients) = found
    torch.testing.assert_close(joined, apart, rtol=1e-5, atol=1e-4)
    for one, other in zip(joined_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "takes"),
    [
        (llama, True),
        (with_learnt_positions, True),
        (with_a_window, False),
        (with_a_state, False),
        (with_plain_attention, False),
    ],
)
def test_only_models_that_see_what_a_mask_says_get_joined_rows(
    kind: Callable[[Path], Any], takes: bool, tiny_model: Path
) -> None:
    model = kind(tiny_model).train()
    assert takes_joined_rows(model) is takes
    assert model.training


def test_a_pair_is_joined_where_its_prompt_costs_more_than_what_its_answers_do_not_see_of_each_other() -> None:
    # 99 tokens saved. 200 + 200 − 99 = 301 tokens have 90,601 entries, both rows apart 40,000.
    [each] = plan_passes([200, 200], 32, shared=[99])
    assert each == Pass((Text((0, 1), (200, 200), 99),), 301)
    # 9 tokens saved. 400 + 400 − 9 = 791 tokens have 625,681 entries, both rows apart 160,000: the excess costs 233.
    assert [text.rows for text in plan_passes([400, 400], 32, shared=[9])[0].texts] == [(0,), (1,)]


def test_pairs_that_are_joined_share_passes_with_others_by_their_length() -> None:
    # Joined: 301 and 40 + 40 − 30 = 50 tokens. In one pass they would be 602.
    passes = plan_passes([200, 40, 200, 40], 32, shared=[99, 30])
    assert [(each.width, each.rows) for each in passes] == [(301, [0, 2]), (50, [1, 3])]
    [together] = plan_passes([200, 40, 200, 40], None, shared=[99, 30])
    assert (together.width, together.rows) == (301, [0, 2, 1, 3])


def test_in_a_single_pass_nothing_is_joined_where_all_would_be_padded_to_it() -> None:
    # One joined text of 301 and six rows padded to it are 2,107 tokens; 8 rows of 200 are 1,600.
    [each] = plan_passes([200] * 8, None, shared=[99, 0, 0, 0])
    assert (each.width, each.rows) == (200, list(range(8)))


def side(*rows: tuple[list[int], list[int]]) -> TokenizedDataset:
    """Rows made of prompts and answers."""
    made = [TokenRow([*prompt, *answer], [False] * len(prompt) + [True] * len(answer)) for prompt, answer in rows]
    return from_rows("a", made, [(line, 1.0, line) for line in range(len(rows))], Ledger("a"), "")


def test_a_pair_shares_what_comes_before_the_token_that_predicts_an_answer_as_far_as_it_is_the_same() -> None:
    chosen = side(([5, 6, 7], [20]), ([5, 6, 7, 8], [21]), ([5], [22]), ([5, 6, 7, 8], [23]))
    rejected = side(([5, 6, 7], [30, 31]), ([5, 9, 7, 8], [32]), ([5], [33]), ([5, 6], [7, 8]))
    rows = RunRows({"a": PairedDataset("a", chosen, rejected, Ledger("a"), "")}, None, max_length=100)
    draws = [Draw("a", row, 0, "one") for row in range(4)]
    assert numbered_rows(rows, draws, (0, 1))["shared"].tolist() == [2, 1, 0, 1]
    assert "shared" not in numbered_rows(rows, draws, (0,))
