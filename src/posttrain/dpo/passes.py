"""Which rows of a micro-batch go through the model together, so that little of it is padding or computed twice.

The answers of a pair are of different lengths, and a micro-batch has several pairs. Rows are scored one by one, so it
makes no difference which of them share a pass, except in how much of it is padding. Both rows of a pair begin with the
same prompt; where they go through the model as one text, prompt, chosen and rejected answer, it is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# How many tokens of padding cost as much time as one more pass does by itself (SmolLM2-135M, forward and backward).
_COST_OF_A_PASS = {"cpu": 32}
_COST_ELSEWHERE = 4096

# How many entries of an attention matrix cost as much time as a token does by itself (the same); less in wider models.
_ENTRIES_PER_TOKEN = 2000


@dataclass(frozen=True)
class Text:
    """What goes through the model as one: a row of the micro-batch, or two that begin with the same tokens.

    Attributes:
        rows: their numbers.
        lengths: tokens of each.
        shared: how many tokens the second goes without, because the first begins with them too.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    shared: int = 0

    @property
    def length(self) -> int:
        """Tokens that are computed."""
        return sum(self.lengths) - self.shared


@dataclass(frozen=True)
class Pass:
    """Texts that go through the model together, all padded to `width` tokens."""

    texts: tuple[Text, ...]
    width: int

    @property
    def rows(self) -> list[int]:
        """The numbers of its rows, in the order of the texts."""
        return [row for text in self.texts for row in text.rows]


def cost_of_a_pass(device: str) -> int:
    """In tokens, on a kind of device as torch calls it."""
    return _COST_OF_A_PASS.get(device, _COST_ELSEWHERE)


def plan_passes(lengths: Sequence[int], cost: int | None, shared: Sequence[int] = ()) -> list[Pass]:
    """The passes that compute the fewest tokens, each counted as `cost` tokens more; the longest texts come first.

    Args:
        lengths: tokens of each row, shape [rows].
        cost: None for one pass in any case.
        shared: of as many pairs as there are numbers, how many tokens both rows begin with that carry no label; those
            of a pair are as far from each other as there are pairs. None where all rows go by themselves.
    """
    apart = [Text((row,), (length,)) for row, length in enumerate(lengths)]
    passes = _fewest_tokens(apart, cost)
    joined = _joined(apart, shared)
    if not any(text.shared for text in joined):
        return passes
    return min(_fewest_tokens(joined, cost), passes, key=lambda each: _tokens(each, cost or 0))


def _joined(apart: list[Text], shared: Sequence[int]) -> list[Text]:
    """The rows, both of a pair in one text where that is less work."""
    texts = []
    for pair, tokens in enumerate(shared):
        one, other = apart[pair], apart[pair + len(shared)]
        both = Text(one.rows + other.rows, one.lengths + other.lengths, tokens)
        # A mask hides the answers from each other, and the product is computed all the same; nor is there a half of
        # the matrix to leave out, as above the diagonal of one row.
        entries = both.length**2 - (one.length**2 + other.length**2) // 2
        texts += [both] if tokens * _ENTRIES_PER_TOKEN > entries else [one, other]
    return texts


def _fewest_tokens(texts: list[Text], cost: int | None) -> list[Pass]:
    order = sorted(texts, key=lambda text: -text.length)
    if cost is None:
        return [Pass(tuple(texts), order[0].length)]
    # best[i]: the fewest tokens in which the texts from place i of the order on can be computed; next_[i]: where the
    # pass that begins with place i ends. The first text of a pass is its longest.
    best, next_ = [0] * (len(order) + 1), [0] * len(order)
    for start in reversed(range(len(order))):
        best[start], next_[start] = min(
            (best[end] + (end - start) * order[start].length + cost, end) for end in range(start + 1, len(order) + 1)
        )
    passes, start = [], 0
    while start < len(order):
        passes.append(Pass(tuple(order[start : next_[start]]), order[start].length))
        start = next_[start]
    return passes


def _tokens(passes: Sequence[Pass], cost: int) -> int:
    return sum(len(each.texts) * each.width + cost for each in passes)
