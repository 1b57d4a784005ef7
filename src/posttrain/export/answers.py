"""Compare llama.cpp's greedy answers with the model's own, token by token.

The model scores the prompt with llama.cpp's answer in one pass. If each token of the answer is the model's first
choice after all tokens before it, then the model's greedy answer is the same.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from posttrain.errors import RunError
from posttrain.export.gguf_types import TIE, Limits
from posttrain.export.server import Answer

ANSWER_TOKENS = 64


@dataclass(frozen=True)
class Comparison:
    """Over all tokens of all answers; divergences and differences are in nats.

    Attributes:
        kl: mean of KL(model ‖ file) over the tokens that llama.cpp finds likeliest, with all others as one.
        largest_difference: of log-probabilities of tokens to which the model gives 1 % or more.
        agreement: share of tokens that are the model's first choice, ties included.
        ties: tokens that are not, but which the model's logits put within `TIE` of its first choice.
        same_answers: answers that are wholly the model's, ties included.
        ended: answers that ended by a token.
    """

    answers: int
    tokens: int
    kl: float
    largest_difference: float
    agreement: float
    ties: int
    same_answers: int
    ended: int

    def as_json(self) -> dict[str, Any]:
        """Numbers by name."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"mean KL {self.kl:.2g}, same first choice for {self.agreement:.1%} of {self.tokens} tokens, "
            f"{self.same_answers} of {self.answers} answers the same"
        )


def compare(model: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> Comparison:
    """Compare each answer with what `model`, in float32, gives after the prompt and the answer's tokens so far."""
    kls: list[float] = []
    differences: list[float] = [0.0]
    same: list[bool] = []
    ties = same_answers = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = _logits(model, prompt, answer.ids)
        logprobs = logits.log_softmax(dim=-1)
        own: list[bool] = []
        for row, logprob, token, top in zip(logits, logprobs, answer.ids, answer.top, strict=True):
            behind = (row.max() - row[token]).item()
            own.append(behind <= TIE)
            ties += 0 < behind <= TIE
            kl, difference = _divergence(logprob, top)
            kls.append(kl)
            differences.append(difference)
        same += own
        same_answers += all(own)
    return Comparison(
        answers=len(answers),
        tokens=len(same),
        kl=math.fsum(kls) / max(1, len(kls)),
        largest_difference=max(differences),
        agreement=sum(same) / max(1, len(same)),
        ties=ties,
        same_answers=same_answers,
        ended=sum(answer.has_ended for answer in answers),
    )


def require_within(found: Comparison, limits: Limits, kind: str) -> None:
    """Raise RunError if the answers are further from the model's than the limits of the type allow."""
    if not found.tokens:
        raise RunError("answers: llama.cpp gave none")
    if not found.kl <= limits.kl:  # also catches NaN
        raise RunError(f"answers: the mean KL is {found.kl:.3g} nats, above {limits.kl:g} for {kind} ({found})")
    if not found.agreement >= limits.agreement:
        raise RunError(
            f"answers: the first choice is the model's for {found.agreement:.1%} of tokens, below "
            f"{limits.agreement:.0%} for {kind} ({found})"
        )


def _divergence(logprob: torch.Tensor, top: dict[int, float]) -> tuple[float, float]:
    """KL(p ‖ q) over the tokens of `top` with all others as one, and the largest difference of a likely token.

    Args:
        logprob: log p of every token, shape [vocabulary].
        top: log q of some tokens.
    """
    log_p = logprob[list(top)]
    log_q = torch.tensor(list(top.values()), dtype=torch.float64)
    p, q = log_p.exp(), log_q.exp()
    rest_p, rest_q = max(0.0, 1 - p.sum().item()), max(1e-12, 1 - q.sum().item())
    kl = (p * (log_p - log_q)).sum().item() + (rest_p * math.log(rest_p / rest_q) if rest_p > 0 else 0.0)
    likely = p >= 0.01
    difference = (log_p - log_q).abs()[likely].max().item() if likely.any() else 0.0
    return max(0.0, kl), difference


@torch.no_grad()
def _logits(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """What the model gives at each token of the answer, shape [tokens, vocabulary]."""
    ids = torch.tensor([[*prompt, *answer]], device=model.device)
    logits = model(ids).logits[0].cpu().double()
    return logits[len(prompt) - 1 : -1]
