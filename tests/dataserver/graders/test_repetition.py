import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.repetition import Repetition
from posttrain.dataserver.graders.text.completions import GradeInput


def score(text: str, n: int = 4) -> float:
    given = Repetition(n=n).score(GradeInput(text, None))
    return given.value if isinstance(given, Score) else given


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 20))
def test_it_is_the_share_of_different_runs(words: list[str], n: int) -> None:
    runs = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]

    assert score(" ".join(words), n) == pytest.approx(len(set(runs)) / len(runs) if runs else 1)


def test_a_loop_counts_in_every_script() -> None:
    assert score("我爱你" * 1000) < 0.15  # cut into 150 words of 20 letters, three of them distinct
    assert score("!" * 10_000) < 0.01
    assert score("\ud800\0" * 1000) < 0.1


def test_a_sentence_said_twice_costs_about_half() -> None:
    sentence = "one two three four five six seven eight nine ten eleven twelve "

    # 24 words, 21 runs; the nine runs inside the second sentence repeat those of the first.
    assert score(sentence * 2) == pytest.approx(12 / 21)


def test_long_runs_take_no_more_memory_than_short_ones() -> None:
    text = " ".join(str(number) for number in range(20_000))

    def peak(n: int) -> int:
        tracemalloc.start()
        score(text, n)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(20) < 1.5 * peak(3)
