"""Two custom graders: a function, and a class with parameters."""

from posttrain.dataserver.graders.base import Abstain, Score
from posttrain.dataserver.graders.text.completions import GradeInput


def names_the_city(item: GradeInput) -> Score:
    """1 if the answer names the gold city and none of the wrong cities listed in the row."""
    answer = (item.answer or "").casefold()
    named = [city for city in [item.gold, *item.record["wrong"]] if city.casefold() in answer]
    return Score(float(named == [item.gold]), f"names {', '.join(named) or 'no city'}")


class Brevity:
    """1 up to `words` words, then falling to 0 at twice as many."""

    def __init__(self, words: int) -> None:
        self._words = words

    def score(self, item: GradeInput) -> float:
        if item.truncated:
            raise Abstain("cut off, so its length says nothing")
        return min(1.0, max(0.0, 2 - len(item.completion.split()) / self._words))
