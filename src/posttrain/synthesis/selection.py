"""Choose among the graded answers to a prompt those that are worth training on; pure, and the same for equal seeds.

An answer without a grade is not a wrong one: it is neither chosen nor rejected. An answer that was cut is never chosen.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from posttrain.base.chance import chance
from posttrain.synthesis.config import KeptAnswers, KeptPairs

Sort = Literal["whole", "cut", "ungraded", "empty", "repeated"]
Rewards = Literal["all right", "all wrong", "mixed", "ungraded"]
Outcome = Literal["kept", "all right", "all wrong", "below min_reward", "too close", "too unlike in length", "too few"]

# Rewards are weighted means, so what is equal on paper may differ in the last bits.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Candidate:
    """An answer that has a grade and a text that no earlier answer to its prompt has.

    Attributes:
        sample: number of the first answer with this text.
        samples: numbers of all answers with it, so that what is drawn is as frequent as it was sampled.
        tokens: its length; None if a server does not tell.
        is_cut: it reached `max_new_tokens`.
    """

    sample: int
    samples: tuple[int, ...]
    text: str
    reward: float
    tokens: int | None
    is_cut: bool


@dataclass(frozen=True)
class Answers:
    """All answers to a prompt.

    Attributes:
        counts: the number of answers of each sort; an answer counts once, as the first that applies of ungraded, empty,
            repeated, cut and whole.
        rewards: what the graded answers have in common; right is 1, wrong is 0.
    """

    sample_id: str
    candidates: Sequence[Candidate]
    counts: Mapping[Sort, int]
    rewards: Rewards

    @property
    def whole(self) -> list[Candidate]:
        """The candidates that may be chosen."""
        return [each for each in self.candidates if not each.is_cut]


class Pair(NamedTuple):
    """Two answers to one prompt."""

    chosen: Candidate
    rejected: Candidate


def sort_answers(sample_id: str, lines: Iterable[Mapping[str, Any]]) -> Answers:
    """Sort the graded answers to a prompt, given as the lines of `posttrain.evaluate.grading.graded`."""
    counts: Counter[Sort] = Counter()
    candidates: dict[str, Candidate] = {}
    rewards: list[float] = []
    for line in lines:
        text, reward = line["completion"], line["reward"]
        if reward is not None:
            rewards.append(reward)
        if reward is None:
            counts["ungraded"] += 1
        elif not text.strip():
            counts["empty"] += 1
        elif text in candidates:
            counts["repeated"] += 1
            first = candidates[text]
            candidates[text] = replace(first, samples=(*first.samples, line["sample"]))
        else:
            is_cut = line["stop_reason"] == "length"
            counts["cut" if is_cut else "whole"] += 1
            sample, tokens = line["sample"], line["completion_tokens"]
            candidates[text] = Candidate(sample, (sample,), text, reward, tokens, is_cut)
    return Answers(sample_id, list(candidates.values()), counts, _in_common(rewards))


def _in_common(rewards: Sequence[float]) -> Rewards:
    if not rewards:
        return "ungraded"
    if min(rewards) >= 1 - _TOLERANCE:
        return "all right"
    return "all wrong" if max(rewards) <= _TOLERANCE else "mixed"


def choose_answers(answers: Answers, kept: KeptAnswers, seed: int) -> tuple[list[Candidate], Outcome]:
    """The answers to train on, and why there are none."""
    if not answers.whole:
        return [], "too few"
    good = [each for each in answers.whole if each.reward >= kept.min_reward - _TOLERANCE]
    order = {
        "best": lambda each: -each.reward,
        "shortest": lambda each: len(each.text),
        "random": lambda each: 0,
    }[kept.choose]
    chosen = sorted(good, key=lambda each: (order(each), _draw(seed, "choose", kept.path, answers, each)))[
        : kept.per_prompt
    ]
    return chosen, "kept" if chosen else "below min_reward"


def choose_pairs(answers: Answers, kept: KeptPairs, seed: int) -> tuple[list[Pair], Outcome]:
    """Pairs to train on, and why there are none; no answer is in two of them."""
    if answers.rewards in ("all right", "all wrong"):
        return [], answers.rewards
    if not answers.whole or len(answers.candidates) < 2:
        return [], "too few"
    by_best, by_worst = float(kept.chosen == "best"), float(kept.rejected == "worst")
    draws = {each.sample: _draw(seed, "choose", kept.path, answers, each) for each in answers.candidates}
    chosen = sorted(answers.whole, key=lambda each: (-each.reward * by_best, draws[each.sample]))
    rejected = sorted(answers.candidates, key=lambda each: (each.reward * by_worst, draws[each.sample]))
    pairs: list[Pair] = []
    used: set[int] = set()
    is_far = False
    for good in chosen:
        far = [bad for bad in rejected if good.reward - bad.reward >= kept.min_gap - _TOLERANCE]
        is_far |= bool(far)
        match = next((bad for bad in far if bad.sample not in used and _fits(good, bad, kept.max_length_ratio)), None)
        if match is not None and good.sample not in used and len(pairs) < kept.per_prompt:
            pairs.append(Pair(good, match))
            used |= {good.sample, match.sample}
    if pairs:
        return pairs, "kept"
    return [], "too unlike in length" if is_far else "too close"


def random_answers(answers: Answers, count: int, kept: KeptAnswers, seed: int) -> list[Candidate]:
    """`count` whole answers drawn without regard to their rewards."""
    return _shuffled(answers, answers.whole, kept.path, seed)[:count]


def random_pairs(answers: Answers, count: int, kept: KeptPairs, seed: int) -> list[Pair]:
    """`count` pairs drawn without regard to rewards and lengths; no answer is in two of them, and no cut one chosen."""
    chosen = _shuffled(answers, answers.whole, kept.path, seed)[:count]
    others = [each for each in answers.candidates if each not in chosen]
    return [Pair(*two) for two in zip(chosen, _shuffled(answers, others, kept.path, seed), strict=False)]


def _fits(one: Candidate, other: Candidate, ratio: float | None) -> bool:
    shorter, longer = sorted((len(one.text), len(other.text)))
    return ratio is None or longer <= ratio * shorter


def _shuffled(answers: Answers, candidates: Iterable[Candidate], path: str, seed: int) -> list[Candidate]:
    return sorted(candidates, key=lambda each: _draw(seed, "control", path, answers, each))


def _draw(seed: int, purpose: str, path: str, answers: Answers, candidate: Candidate) -> float:
    """A number whose order is that in which the texts first occur if all answers are shuffled."""
    return min(chance(seed, purpose, path, answers.sample_id, sample) for sample in candidate.samples)
