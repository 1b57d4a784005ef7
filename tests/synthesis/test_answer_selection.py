"""What is chosen among graded answers, by hand and for any answers."""

from collections.abc import Sequence
from typing import Any

import pytest
from data_cases import require_sums
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.messages import Conversation, Message
from posttrain.inference.answering.rows import Row
from posttrain.synthesis.config import DedupConfig, KeptAnswers, KeptPairs
from posttrain.synthesis.kept_rows import select
from posttrain.synthesis.ledger import Ledger
from posttrain.synthesis.selection import (
    Answers,
    choose_answers,
    choose_pairs,
    random_answers,
    random_pairs,
    sort_answers,
)


def answers(*given: tuple[str, float | None] | tuple[str, float | None, str], sample_id: str = "q1") -> Answers:
    """Answers of (text, reward) or (text, reward, stop reason)."""
    lines: list[dict[str, Any]] = []
    for sample, (text, reward, *reason) in enumerate(given):
        stop = reason[0] if reason else "end"
        lines.append(
            {"completion": text, "reward": reward, "sample": sample, "stop_reason": stop, "completion_tokens": None}
        )
    return sort_answers(sample_id, lines)


def sft(**options: Any) -> KeptAnswers:
    return KeptAnswers(**{"type": "sft", "path": "a.jsonl", **options})


def pairs(**options: Any) -> KeptPairs:
    return KeptPairs(**{"type": "pairs", "path": "a.jsonl", **options})


def texts(found: Sequence[Any]) -> list[Any]:
    return [each.text if hasattr(each, "text") else (each.chosen.text, each.rejected.text) for each in found]


def test_each_answer_counts_once():
    found = answers(
        ("a", 1.0), ("a", 1.0), ("b", None, "length"), (" \n", 0.0), ("c", 0.0, "length"), ("c", 0.0), ("", None)
    )
    assert found.counts == {"whole": 1, "repeated": 2, "ungraded": 2, "empty": 1, "cut": 1}
    assert texts(found.candidates) == ["a", "c"]
    assert texts(found.whole) == ["a"]


@pytest.mark.parametrize(
    ("rewards", "common"),
    [
        ([1.0, 1.0, None], "all right"),
        ([0.9999999999999999, 1.0], "all right"),
        ([0.0, None, 0.0], "all wrong"),
        ([0.5, 0.5], "mixed"),
        ([0.0, 1.0], "mixed"),
        ([None], "ungraded"),
    ],
)
def test_what_rewards_have_in_common(rewards: list[float | None], common: str):
    assert answers(*((str(n), reward) for n, reward in enumerate(rewards))).rewards == common


@pytest.mark.parametrize(
    ("options", "chosen", "outcome"),
    [
        ({}, ["right"], "kept"),
        ({"per_prompt": 5}, ["right"], "kept"),
        ({"min_reward": 0.5, "per_prompt": 2}, ["right", "nearly"], "kept"),
        ({"min_reward": 0.5, "per_prompt": 2, "choose": "shortest"}, ["half", "right"], "kept"),
        ({"min_reward": 1.1}, [], "below min_reward"),
    ],
)
def test_answers_to_train_on(options: dict, chosen: list[str], outcome: str):
    given = answers(("right", 1.0), ("nearly", 0.9), ("half", 0.5), ("cut", 1.0, "length"), ("none", None))
    found, why = choose_answers(given, sft(**options), seed=0)
    assert (texts(found), why) == (chosen, outcome)


@pytest.mark.parametrize(
    ("options", "chosen", "outcome"),
    [
        ({}, [("right", "wrong")], "kept"),
        # No answer is in two pairs: the second best with the second worst, 0.9 - 0.3 apart.
        ({"per_prompt": 3}, [("right", "wrong"), ("nearly good", "cut")], "kept"),
        ({"per_prompt": 3, "min_gap": 0.7}, [("right", "wrong")], "kept"),
        # "nearly good" has 11 characters and "wrong" 5.
        ({"per_prompt": 3, "max_length_ratio": 1.0}, [("right", "wrong")], "kept"),
        ({"min_gap": 1.0}, [("right", "wrong")], "kept"),
        ({"min_gap": 1.1}, [], "too close"),
    ],
)
def test_pairs_to_train_on(options: dict, chosen: list[tuple[str, str]], outcome: str):
    given = answers(("nearly good", 0.9), ("right", 1.0), ("cut", 0.3, "length"), ("wrong", 0.0), ("none", None))
    found, why = choose_pairs(given, pairs(**options), seed=0)
    assert (texts(found), why) == (chosen, outcome)


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ([("a", 1.0), ("b", 1.0)], "all right"),
        ([("a", 0.0), ("b", 0.0)], "all wrong"),
        ([("a", 0.5), ("b", 0.5)], "too close"),
        ([("a", 1.0), ("b", None)], "all right"),
        ([("a", 0.7), ("b", None)], "too few"),
        ([("a", 1.0, "length"), ("b", 0.0)], "too close"),
        ([("a", 1.0, "length"), ("b", 0.0, "length")], "too few"),
        ([("a", 1.0), ("b", 0.5), ("b", 0.0)], "kept"),
        ([("a", 1.0), ("a", 0.0)], "too few"),
        ([("a", 1.0), ("bbb", 0.0)], "too unlike in length"),
        ([], "too few"),
    ],
)
def test_prompts_without_a_pair(given: list, outcome: str):
    assert choose_pairs(answers(*given), pairs(max_length_ratio=2), seed=0)[1] == outcome


def test_a_tie_is_decided_by_the_seed_and_not_by_the_order():
    given = answers(*((str(n), 1.0) for n in range(8)))
    first = {texts(choose_answers(given, sft(), seed)[0])[0] for seed in range(40)}
    assert len(first) > 4
    assert len({tuple(texts(choose_answers(given, sft(), seed=3)[0])) for _ in range(3)}) == 1


def test_a_control_is_drawn_without_regard_to_rewards():
    given = answers(*((str(n), n / 7) for n in range(8)), ("cut", 0.0, "length"))
    drawn = [texts(random_answers(given, 1, sft(), seed))[0] for seed in range(400)]
    assert set(drawn) == {str(n) for n in range(8)}
    # Each is drawn 50 times on average, with a standard deviation of 6.6.
    assert all(25 < drawn.count(str(n)) < 80 for n in range(8))
    better = [
        pair.chosen.reward > pair.rejected.reward for s in range(400) for pair in random_pairs(given, 1, pairs(), s)
    ]
    assert 150 < sum(better) < 270


def test_what_was_sampled_more_often_is_drawn_more_often():
    given = answers(*(("often", 1.0) for _ in range(6)), ("once", 1.0), ("too", 1.0))
    for draw in (
        lambda seed: random_answers(given, 1, sft(), seed),
        lambda seed: choose_answers(given, sft(choose="random"), seed)[0],
    ):
        drawn = [texts(draw(seed))[0] for seed in range(400)]
        # 6 of 8 answers: 300 times on average, with a standard deviation of 8.7.
        assert 270 < drawn.count("often") < 330


ANSWER = st.tuples(
    st.sampled_from(["", "a", "bb", "ccc", "dddd", "eeeee"]),
    st.sampled_from([None, 0.0, 0.3, 0.5, 1.0]),
    st.sampled_from(["end", "stop", "length"]),
)
PROMPTS = st.lists(st.lists(ANSWER, min_size=1, max_size=8), max_size=6)
PAIRS = st.builds(
    pairs,
    chosen=st.sampled_from(["best", "random"]),
    rejected=st.sampled_from(["worst", "random"]),
    min_gap=st.sampled_from([0.1, 0.5, 1.0]),
    max_length_ratio=st.sampled_from([None, 1.0, 2.0]),
    per_prompt=st.integers(1, 3),
)
SFT = st.builds(
    sft,
    min_reward=st.sampled_from([0.0, 0.5, 1.0]),
    choose=st.sampled_from(["best", "shortest", "random"]),
    per_prompt=st.integers(1, 3),
)


def row(number: int) -> Row:
    prompt = Conversation((Message("user", f"question {number % 3}"),))
    return Row("f", f"f:{number}", number, number, prompt, facts={"sample_id": f"q{number}"})


@given(PROMPTS, SFT | PAIRS, st.sampled_from([None, DedupConfig(by="row")]), st.integers(0, 3))
def test_the_numbers_of_a_file_add_up_and_its_control_has_as_many_rows(
    prompts: list, kept: KeptAnswers | KeptPairs, dedup: DedupConfig | None, seed: int
):
    all_answers = [answers(*given, sample_id=f"q{number}") for number, given in enumerate(prompts)]
    by_id = {f"q{number}": row(number) for number in range(len(prompts))}
    found = select(kept, by_id, all_answers, dedup, seed)
    ledger = Ledger()
    ledger.prompts["read"] = ledger.prompts["asked"] = len(prompts)
    for each in all_answers:
        ledger.rewards[each.rewards] += 1
        ledger.answers["asked"] += sum(each.counts.values())
        ledger.answers.update(each.counts)
    ledger.files["a.jsonl"] = found.ledger
    require_sums(ledger.as_json())
    assert len(found.rows) == found.ledger.rows["kept"]
    assert [each["sample_id"] for each in found.rows] == [each["sample_id"] for each in found.control]
    assert sum(map(len, prompts)) == ledger.answers["asked"]
    assert found == select(kept, by_id, all_answers, dedup, seed)


@given(st.lists(ANSWER, max_size=8), PAIRS, st.integers(0, 3))
def test_every_pair_has_a_gap_and_a_whole_graded_chosen_answer(given: list, kept: KeptPairs, seed: int):
    all_answers = answers(*given)
    found, why = choose_pairs(all_answers, kept, seed)
    assert bool(found) == (why == "kept") and len(found) <= kept.per_prompt
    used = [each.sample for pair in found for each in pair]
    assert len(used) == len(set(used))
    for chosen, rejected in found:
        assert chosen.text != rejected.text and chosen.text and rejected.text
        assert chosen.reward - rejected.reward >= kept.min_gap - 1e-9 and not chosen.is_cut
        ratio = kept.max_length_ratio or 99
        assert max(len(chosen.text), len(rejected.text)) <= ratio * min(len(chosen.text), len(rejected.text))
    if why == "too close":
        rewards = [each.reward for each in all_answers.candidates]
        assert all(each.reward - min(rewards) < kept.min_gap for each in all_answers.whole)


@given(st.lists(ANSWER, max_size=8), SFT, st.integers(0, 3))
def test_every_kept_answer_is_whole_and_good_enough(given: list, kept: KeptAnswers, seed: int):
    all_answers = answers(*given)
    found, why = choose_answers(all_answers, kept, seed)
    good = [each for each in all_answers.whole if each.reward >= kept.min_reward]
    assert bool(found) == (why == "kept") and len(found) == min(len(good), kept.per_prompt)
    assert all(each in good for each in found)
    if found and kept.choose == "best":
        assert min(each.reward for each in found) >= max((e.reward for e in good if e not in found), default=0)
