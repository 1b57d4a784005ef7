"""Find texts that say the same: copies, near copies, and held-out texts that occur in others.

Texts are compared after NFKC, case folding and joining of white space. Words are what white space separates; a Chinese
or Japanese character is a word of its own. A gram is n words in a row, and a text of fewer than n words is one gram.

Grams that more than `COMMON` texts have (such as those of an instruction that every prompt begins with) are not looked
up, because each of them would have all these texts compared. What that misses: near copies that share no other gram,
and, in `HeldOut`, that part of a held-out text. Copies are always found.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")
Q = TypeVar("Q")

COMMON = 200
"""A gram in more texts than this is not looked up."""

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_ALONE}]|[^\s{_ALONE}]+")


def normalised(text: str) -> str:
    """The text as it is compared: NFKC, case folded, with single spaces between words."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())  # folding may leave what NFKC joins


def grams(text: str, n: int) -> frozenset[str]:
    """The runs of `n` words in a text, or all its words if there are fewer; none if there are no words."""
    words = _WORD.findall(normalised(text))
    return frozenset(" ".join(words[start : start + n]) for start in range(max(1, len(words) - n + 1)) if words)


@dataclass(frozen=True)
class Found(Generic[P]):
    """A held-out text that another text has.

    Attributes:
        place: of the held-out text.
        share: how much of the held-out text's grams the other one has, from 0 to 1.
        exact: whether the normalised texts are equal; `share` is then 1.
    """

    place: P
    share: float
    exact: bool


class HeldOut(Generic[P]):
    """Held-out texts, to be looked for in any number of others."""

    def __init__(self, texts: Iterable[tuple[P, str]], n: int = 13, common: int = COMMON) -> None:
        """Index the texts, each with its place; memory grows with them, not with those that are searched."""
        self._places: list[P] = []
        self._n = n
        self._copies: dict[str, list[int]] = defaultdict(list)
        index: dict[str, list[int]] = defaultdict(list)
        for number, (place, text) in enumerate(texts):
            self._places.append(place)
            self._copies[normalised(text)].append(number)
            for gram in grams(text, n):
                index[gram].append(number)
        self._index = {gram: numbers for gram, numbers in index.items() if len(numbers) <= common}
        self._sizes = Counter(number for numbers in self._index.values() for number in numbers)

    def found_in(self, text: str, least: float = 0.5) -> list[Found[P]]:
        """The held-out texts that `text` equals, or of whose grams it has this share, in their order.

        Args:
            least: the smallest share that counts, above 0; of a held-out text of which all grams are common, only
                copies are found.
        """
        copies = self._copies.get(normalised(text), ())
        shared = Counter(number for gram in grams(text, self._n) for number in self._index.get(gram, ()))
        shares = {number: count / self._sizes[number] for number, count in shared.items()}
        shares = {number: share for number, share in shares.items() if share >= least} | dict.fromkeys(copies, 1.0)
        return [Found(self._places[number], shares[number], number in copies) for number in sorted(shares)]


def overlaps(
    held_out: Iterable[tuple[P, str]],
    against: Iterable[tuple[Q, str]],
    *,
    n: int = 13,
    least: float = 0.5,
    common: int = COMMON,
) -> Iterator[tuple[Found[P], Q]]:
    """Yield each held-out text that one of the texts `against` has, with the place of that one, in their order.

    `against` may be larger than memory. See `HeldOut` for the arguments.
    """
    index = HeldOut(held_out, n, common)
    for place, text in against:
        for found in index.found_in(text, least):
            yield found, place


@dataclass(frozen=True)
class Duplicate:
    """A text that repeats an earlier one.

    Attributes:
        of: number of the earlier text, counted from 0.
        similarity: Jaccard similarity of their grams, from 0 to 1.
        exact: whether the normalised texts are equal; `similarity` is then 1.
    """

    of: int
    similarity: float
    exact: bool


def duplicates(
    texts: Iterable[str], near: float | None = None, *, n: int = 5, common: int = COMMON
) -> dict[int, Duplicate]:
    """The texts that repeat an earlier one that is not itself left out, by their numbers, counted from 0.

    Args:
        near: leave out near copies too, of which the Jaccard similarity of `n`-grams is at least this, above 0. The
            most similar of the earlier texts is named, and of several the first one; a copy of a text that is left out
            is left out for the same one.
    """
    copies: dict[int, Duplicate] = {}
    firsts: dict[str, int] = {}
    for number, text in enumerate(texts):
        first = firsts.setdefault(normalised(text), number)
        if first != number:
            copies[number] = Duplicate(first, 1.0, exact=True)
    if near is None:
        return copies
    left_out: dict[int, Duplicate] = {}
    numbers = list(firsts.values())
    for one, others in _similar([grams(text, n) for text in firsts], near, common):
        kept = {numbers[other]: similarity for other, similarity in others.items() if numbers[other] not in left_out}
        if kept:
            closest = max(kept, key=lambda number: (kept[number], -number))
            left_out[numbers[one]] = Duplicate(closest, kept[closest], exact=False)
    for number, copy in copies.items():  # a copy of what is left out repeats what that repeats
        left_out[number] = left_out.get(copy.of, copy)
    return dict(sorted(left_out.items()))


def _similar(sets: Sequence[Collection[str]], least: float, common: int) -> Iterator[tuple[int, Mapping[int, float]]]:
    """Yield the number of each set with the Jaccard similarity of the earlier sets that resemble it, by their number.

    The similarity counts all members; candidates are those that share a member that at most `common` sets have.
    """
    counts = Counter(gram for members in sets for gram in members)
    index: dict[str, list[int]] = defaultdict(list)
    for number, members in enumerate(sets):
        rare = [gram for gram in members if counts[gram] <= common]
        candidates = {other for gram in rare for other in index[gram]}
        found = {other: _jaccard(members, sets[other]) for other in candidates}
        yield number, {other: found[other] for other in sorted(found) if found[other] >= least}
        for gram in rare:
            if counts[gram] > 1:
                index[gram].append(number)


def _jaccard(one: Collection[str], other: Collection[str]) -> float:
    shared = len(frozenset(one).intersection(other))
    return shared / (len(one) + len(other) - shared)
