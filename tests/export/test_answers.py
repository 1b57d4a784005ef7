"""How far answers are from the model's, in numbers worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import RunError
from posttrain.export.answers import Comparison, compare, require_within
from posttrain.export.gguf_types import LIMITS, Limits
from posttrain.export.server import Answer


class Bigrams(torch.nn.Module):
    """A model whose next token depends on the last one alone: row i of `probabilities` follows token i."""

    def __init__(self, probabilities: list[list[float]]) -> None:
        super().__init__()
        self.table = torch.tensor(probabilities, dtype=torch.float32).log()
        self.device = torch.device("cpu")

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        """Logits, shape [1, tokens, vocabulary]."""
        return SimpleNamespace(logits=self.table[ids])


MODEL = Bigrams([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]])


def logs(**probabilities: float) -> dict[int, float]:
    """Log-probabilities by token: a is 0, b is 1, c is 2."""
    return {"abc".index(name): math.log(value) for name, value in probabilities.items()}


def test_an_answer_of_the_models_own_distribution_has_no_divergence():
    # After a comes a (1/2), and after a again.
    answer = Answer([0, 0], [logs(a=0.5, b=0.25, c=0.25)] * 2, has_ended=False)
    found = compare(MODEL, [[0]], [answer])
    assert (found.kl, found.largest_difference) == pytest.approx((0, 0), abs=1e-6)
    assert (found.tokens, found.agreement, found.ties, found.same_answers, found.ended) == (2, 1.0, 0, 1, 0)


def test_the_divergence_counts_the_tokens_that_are_not_listed_as_one():
    # p = (1/2, 1/4, 1/4), q lists a and b with 1/4 each, so the rest has 1/2:
    # 1/2 ln 2 + 1/4 ln 1 + 1/4 ln 1/2 = 1/4 ln 2. The largest difference is ln 2, of a.
    found = compare(MODEL, [[0]], [Answer([0], [logs(a=0.25, b=0.25)], has_ended=True)])
    assert found.kl == pytest.approx(math.log(2) / 4, abs=1e-6)
    assert found.largest_difference == pytest.approx(math.log(2), abs=1e-6)
    assert found.ended == 1


def test_a_token_that_is_not_the_models_first_choice_is_counted_and_its_answer_is_another():
    # After a, llama.cpp takes c (the model: a); after c it takes a, as the model does.
    answer = Answer([2, 0], [logs(c=0.6, a=0.4), logs(a=0.4, b=0.3, c=0.3)], has_ended=True)
    found = compare(MODEL, [[0], [2]], [answer, Answer([0], [logs(a=0.4, b=0.3, c=0.3)], has_ended=True)])
    assert (found.tokens, found.agreement, found.answers, found.same_answers) == (3, 2 / 3, 2, 1)


def test_a_choice_within_a_thousandth_of_the_first_counts_as_the_same():
    model = Bigrams([[0.5002, 0.4998]] * 2)  # ln(5002/4998) = 0.0008
    found = compare(model, [[0]], [Answer([1], [logs(b=0.5001, a=0.4999)], has_ended=True)])
    assert (found.agreement, found.ties, found.same_answers) == (1.0, 1, 1)
    further = Bigrams([[0.501, 0.499]] * 2)  # 0.004
    assert compare(further, [[0]], [Answer([1], [logs(b=0.6, a=0.4)], has_ended=True)]).agreement == 0.0


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.integers(1, 3))
def test_the_divergence_is_never_negative_and_zero_only_for_the_same(weights: list[float], listed: int):
    q = [weight / sum(weights) for weight in weights]
    top = {token: math.log(q[token]) for token in range(listed)}
    found = compare(MODEL, [[0]], [Answer([0], [top], has_ended=True)])
    whole = sum(p * math.log(p / each) for p, each in zip((0.5, 0.25, 0.25), q, strict=True))
    # Taking tokens together can only lower it.
    assert 0 <= found.kl <= whole + 1e-5


def comparison(kl: float, agreement: float, tokens: int = 100) -> Comparison:
    return Comparison(20, tokens, kl, 0.1, agreement, 0, 10, 20)


def test_limits_are_for_each_type_and_looser_for_shorter_ones():
    assert list(LIMITS) == ["f32", "f16", "bf16", "q8_0", "q4_k_m"]
    kls, agreements = ([getattr(limit, name) for limit in LIMITS.values()] for name in ("kl", "agreement"))
    assert kls == sorted(kls) and agreements == sorted(agreements, reverse=True)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (comparison(0.02, 1.0), r"^answers: the mean KL is 0\.02 nats, above 0\.01 for q8_0"),
        (comparison(math.nan, 1.0), r"^answers: the mean KL is nan nats"),
        (comparison(0.001, 0.9), r"^answers: the first choice is the model's for 90\.0% of tokens, below 95% for q8_0"),
        (comparison(0.0, 0.0, tokens=0), r"^answers: llama\.cpp gave none"),
    ],
)
def test_answers_beyond_a_limit_are_refused(found: Comparison, told: str):
    with pytest.raises(RunError, match=told):
        require_within(found, Limits(kl=0.01, agreement=0.95), "q8_0")


def test_answers_at_the_limits_are_accepted():
    require_within(comparison(0.01, 0.95), Limits(kl=0.01, agreement=0.95), "q8_0")
