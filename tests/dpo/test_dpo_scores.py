"""Log-probabilities of answers equal those from full logits, however the rows are batched."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from posttrain.conversation.masks import TokenRow
from posttrain.data.ledger import Ledger
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.datasets import LabelledDataset, PairedDataset
from posttrain.dpo.passes import Pass, plan_passes
from posttrain.dpo.run_rows import MismatchedRows, RunRows, partners
from posttrain.dpo.scores import AskedModel, RowScorer, answer_logprobs
from posttrain.models.backend import LoadedModel
from posttrain.models.frozen import FrozenModel
from posttrain.models.kernels import recomputed_attention
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.padding import pad_rows
from token_rows import from_rows

# Prompts of 3, 1 and 2 tokens with answers of 2, 4 and 1; `dataset` ends each row with an untrained token.
ROWS = [([5, 6, 7], [20, 21]), ([8], [22, 23, 24, 25]), ([9, 10], [26])]
INPUT_LENGTHS = [5, 5, 3]


def dataset(rows: list[tuple[list[int], list[int]]] = ROWS, contents: list[int] | None = None) -> TokenizedDataset:
    made = [
        TokenRow([*prompt, *answer, 1], [False] * len(prompt) + [True] * len(answer) + [False])
        for prompt, answer in rows
    ]
    described = [(line, 1.0, (contents or range(len(rows)))[line]) for line in range(len(rows))]
    return from_rows("a", made, described, Ledger("a"), "")


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def alone(lengths: list[int], *rows: int) -> Pass:
    """A pass of some rows, none of them joined; `lengths` covers all rows."""
    return Pass(rows, max(lengths[row] for row in rows))


def by_whole_logits(model: Any, prompt: list[int], answer: list[int]) -> float:
    with torch.no_grad():
        spread = model(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    return sum(float(spread[len(prompt) + place - 1, token]) for place, token in enumerate(answer))


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    rows = dataset()
    return pad_rows([rows.row(row) for row in range(len(rows))])


@pytest.mark.parametrize("groups", [None, [(1,), (0, 2)], [(0, 1), (2,)], [(2, 1, 0)]])
def test_the_score_of_an_answer_is_the_sum_over_its_tokens(model: Any, groups: list[tuple[int, ...]] | None) -> None:
    head = LabelledHead(model)
    passes = [alone(INPUT_LENGTHS, *rows) for rows in groups] if groups else None
    found = answer_logprobs(head, model, *padded(), passes)
    head.detach()
    assert found.tolist() == pytest.approx([by_whole_logits(model, *row) for row in ROWS], abs=1e-4)


def test_gradients_do_not_depend_on_the_passes(model: Any) -> None:
    gradients = []
    for passes in (None, [alone(INPUT_LENGTHS, 1), alone(INPUT_LENGTHS, 0, 2)]):
        head = LabelledHead(model)
        model.zero_grad()
        (answer_logprobs(head, model, *padded(), passes) * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
        head.detach()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_pass_of_its_own_is_for_rows_whose_padding_costs_more() -> None:
    # Together: 4 × 100. With the two short ones apart: 2 × 100 + 2 × 30 and one more pass.
    lengths = [30, 100, 90, 20]
    assert plan_passes(lengths, cost=15) == [alone(lengths, 1, 2), alone(lengths, 0, 3)]
    assert plan_passes(lengths, cost=200) == [alone(lengths, 1, 2, 0, 3)]
    assert plan_passes(lengths, cost=0) == [alone(lengths, row) for row in (1, 2, 0, 3)]
    assert plan_passes(lengths, cost=None) == [alone(lengths, 0, 1, 2, 3)]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(0, 80))
def test_no_other_passes_compute_fewer_tokens(lengths: list[int], cost: int) -> None:
    def tokens(groups: list[tuple[int, ...]]) -> int:
        return sum(len(rows) * max(lengths[row] for row in rows) + cost for rows in groups)

    planned = [tuple(each.rows) for each in plan_passes(lengths, cost)]
    assert sorted(row for rows in planned for row in rows) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for cuts in range(2 ** (len(order) - 1)):
        places = [0, *(place + 1 for place in range(len(order) - 1) if cuts >> place & 1), len(order)]
        groups = [tuple(order[start:end]) for start, end in pairwise(places)]
        assert tokens(planned) <= tokens(groups)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("width", [1, 2, 8])
def test_all_rows_of_a_data_set_come_in_their_order_whatever_the_batches(
    tiny_model: Path, width: int, packed: bool
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    if packed:
        recomputed_attention.use_in(model)
    # Prompts of 20 and 22 tokens are computed once for both sides, the one of 2 is not worth it.
    chosen = [(list(range(30, 50)), [20, 21]), (list(range(60, 82)), [22, 23, 24, 25]), ([9, 10], [26])]
    rejected = [(prompt, chosen[row - 1][1]) for row, (prompt, _) in enumerate(chosen)]
    pairs = PairedDataset("a", dataset(chosen), dataset(rejected), Ledger("a"), "")
    [both] = RunRows({"a": pairs}, None, max_length=100)
    loaded: Any = LoadedModel(model, None, torch.device("cpu"), torch.float32, ())  # pyright: ignore[reportArgumentType]
    scorer = RowScorer(Accelerator(cpu=True), width, loaded)
    found = scorer(AskedModel(FrozenModel(model), packed=packed), both, "rows")
    assert found.dtype == torch.float32
    for side, rows in zip(found, (chosen, rejected), strict=True):
        assert side.tolist() == pytest.approx([by_whole_logits(model, *row) for row in rows], abs=1e-4)


def test_a_model_that_is_asked_has_no_dropout_and_goes_on_training_as_it_was(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.9)
    asked = AskedModel(FrozenModel(model))
    model.train()
    first, second = (asked.logprobs(*padded()) for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert model.training
    model.eval()
    asked.logprobs(*padded())
    assert not model.training


def test_a_mismatched_row_is_a_prompt_with_the_answer_of_the_row_before() -> None:
    rows = MismatchedRows(dataset(), max_length=100)
    found = [(ids.tolist(), trained.tolist()) for ids, trained in map(rows.row, range(3))]
    assert found == [
        ([5, 6, 7, 26, 1], [False, False, False, True, False]),
        ([8, 20, 21, 1], [False, True, True, False]),
        ([9, 10, 22, 23, 24, 25, 1], [False, False, True, True, True, True, False]),
    ]
    assert rows.lengths().tolist() == [5, 4, 7]


def test_a_mismatched_row_is_cut_at_the_longest_that_is_allowed() -> None:
    rows = MismatchedRows(dataset(), max_length=5)
    assert rows.row(2)[0].tolist() == [9, 10, 22, 23, 24]
    assert rows.lengths().tolist() == [5, 4, 5]


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([1, 2, 3], [2, 0, 1]),
        # Rows with the same prompt are skipped, also when wrapping around.
        ([1, 1, 2, 2, 3], [4, 4, 1, 1, 3]),
        ([1, 2, 3, 1], [2, 0, 1, 2]),
        # There is no other prompt.
        ([7, 7, 7], [2, 0, 1]),
        ([7], [0]),
    ],
)
def test_a_row_is_matched_with_the_nearest_one_before_it_of_another_prompt(
    contents: list[int], expected: list[int]
) -> None:
    assert partners(np.array(contents, dtype=np.uint64)).tolist() == expected


def test_every_row_of_a_run_has_a_number_of_its_own() -> None:
    pairs = PairedDataset("a", dataset(), dataset(), Ledger("a"), "")
    two = PairedDataset("b", dataset(ROWS[:2]), dataset(ROWS[:2]), Ledger("b"), "")
    rows = RunRows({"a": pairs, "b": two}, pairs, max_length=100)
    assert [(both.name, len(both), *(side.start for side in both.sides)) for both in rows] == [
        ("datasets.a", 3, 0, 3),
        ("datasets.b", 2, 6, 8),
        ("validation", 3, 10, 13),
    ]
    assert rows.count == 16
    assert rows.training("b").sides[1].lengths.tolist() == [6, 6]


def test_the_digest_changes_with_everything_that_the_scores_depend_on() -> None:
    def digest(rows: TokenizedDataset, max_length: int = 100) -> str:
        labelled = LabelledDataset("a", rows, np.array([True, False, True]), Ledger("a"), "")
        [both] = RunRows({"a": labelled}, None, max_length)
        return both.digest

    same = digest(dataset())
    assert same == digest(dataset())
    other_token = digest(dataset([*ROWS[:2], ([9, 10], [27])]))
    other_place = digest(dataset([*ROWS[:2], ([9], [10, 26])]))
    # These change only the mismatched rows: which are paired, and where they are cut.
    other_partner, cut = digest(dataset(contents=[0, 1, 1])), digest(dataset(), max_length=5)
    assert len({same, other_token, other_place, other_partner, cut}) == 5
