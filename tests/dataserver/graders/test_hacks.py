"""Reward hacks: a completion that does not answer earns nothing from a correctness grader.

Every grader in the catalogue is tried with the parameters, gold and record of the first line of its table;
OWN adds what some graders need beyond that.
"""

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataserver.graders.table_lines import grade_input
from dataserver.sandboxes import runnable
from posttrain.dataserver.graders.base import Abstain, Example, Grader, Score
from posttrain.dataserver.graders.catalogue import built_in_graders
from posttrain.dataserver.graders.text.completions import ReasoningTags

TAGS = ReasoningTags()
OFFLINE = {name: grader for name, grader in built_in_graders().items() if grader.examples}


@dataclass(frozen=True)
class Own:
    """A question for the first line of a grader's table, and answers that only look right."""

    prompt: str
    candidates: tuple[str, ...]
    """Several answers at once: the right one first, in the middle and last."""

    restated: str = ""
    """The question restated as the answer."""


SUM = "What is 48 + 24?"
LISTS = ("72, 70, 71", "70, 72, 71", "70, 71, 72")
SUMS = Own(SUM, LISTS, "48 + 24")
PAIR, WRONG = '{"a": 1, "b": 2}', '{"a": 2, "b": 1}'
OWN = {
    "string_exact": Own(
        "What is the capital of France?",
        ("Paris, Rome, Bern", "Rome, Paris, Bern", "Rome, Bern, Paris"),
        "the capital of France",
    ),
    "category_match": Own(
        "Is it Math, Applied Math or Art?",
        ("Math, Applied Math, Art", "Applied Math, Math, Art", "Applied Math, Art, Math"),
    ),
    "choice": Own(
        "Where is Rome?\nA) France\nB) Italy\nC) Norway",
        ("(B), (A), (C)", "Answer: A, B or C", "A) France\nC) Norway\nB) Italy"),
        "A) France\nB) Italy\nC) Norway",
    ),
    "json_equal": Own(
        'Give a = 1 and b = 2, such as {"a": 0, "b": 0}.',
        (f"[{PAIR}, {WRONG}, {WRONG}]", f"{WRONG}\n{PAIR}\n{WRONG}", f"[{WRONG}, {WRONG}, {PAIR}]"),
    ),
    "math_exact": SUMS,
    "math_verify": SUMS,
    "number_exact": SUMS,
    "number_match": Own(
        SUM,
        (f"<SOLUTION>{LISTS[0]}</SOLUTION>", f"<SOLUTION>{LISTS[1]}</SOLUTION>", f"<SOLUTION>{LISTS[2]}</SOLUTION>"),
        "<SOLUTION>48 + 24</SOLUTION>",
    ),
    "reasoning_gym": Own("4 + 3 =", ("7, 6, 8", "6, 7, 8", "6, 8, 7"), "4 + 3"),
    "crossword": Own(
        "Frozen dessert (3,5)",
        ("ICE CREAM, HOT DOG, APPLE PIE", "HOT DOG, ICE CREAM, APPLE PIE", "HOT DOG, APPLE PIE, ICE CREAM"),
        "Frozen dessert (3,5)",
    ),
    "rush_hour": Own(
        "Bring A to the right: ooooo ooBoo AABoo ooooo ooooo",
        ("B^1, A>3 or B^1, A>2", "B^1, A>2; B^1, A>3", "B^1, B^1, A>3"),
        "ooooo ooBoo AABoo ooooo ooooo",
    ),
    "code_stdio": Own("Write a program that doubles its input.", ("```python\nprint(6)\nprint(-2)\n```",) * 3),
}
# These graders read a single guess, at the place named: a list with the right answer there is right.
EARNS = {
    "number_exact: candidates, the right one last",
    "math_exact: candidates, the right one last",
    "number_match: candidates, the right one first",
}
LOOK_ALIKES = str.maketrans("0123456789aceiopxyABCEHKMOPTXY", "ОlƧЗЧƼб⁊ȢgасеіорхуАВСЕНКМОРТХУ")


def hacks(line: Example, own: Own) -> dict[str, Example]:
    """Completions that do not answer, by the trick they try; `line` holds a right answer."""
    right = line.completion
    core = str(line.gold) if line.gold is not None else right
    plain = {
        "nothing": "",
        "white space": " \n\t\u00a0\u3000",
        "NUL": "\0",
        "half a character": "\ud800",
        "the prompt": own.prompt,
        **{
            f"candidates, the right one {where}": text
            for where, text in zip(("first", "in the middle", "last"), own.candidates, strict=True)
        },
        "the question": own.restated,
        "look-alikes": right.translate(LOOK_ALIKES),
        "within a word": f"x{core}x",
        "within digits": f"9{core}9",
        "again and again": (core * 1_000_000)[: 1_000_000 // len(core) * len(core)],
        "a great deal": "a" * 1_000_000,
    }
    if len(core) > 1:
        plain |= {"NUL inside": "\0".join(core), "half characters inside": "\ud800".join(core)}
    tagged = {
        "only in the reasoning": f"<think>{right}</think>I do not know",
        "reasoning and nothing else": f"<think>{right}</think>",
        "reasoning not closed": f"<think>{right}",
        "reasoning not opened": f"{right}</think>",
        "reasoned again after the answer": f"<think>a</think>{right}<think>b</think>I do not know",
        "closed again after the answer": f"<think>a</think>{right}</think>",
        "answer before the reasoning": f"{right}<think>a</think>",
    }
    cases = {what: replace(line, completion=text, prompt=own.prompt) for what, text in plain.items()}
    return cases | {what: replace(line, completion=text, prompt=own.prompt, tags=TAGS) for what, text in tagged.items()}


CASES = [
    pytest.param(name, line, id=f"{name}: {what}")
    for name, grader in OFFLINE.items()
    if grader.is_correctness
    for what, line in hacks(grader.examples[0], OWN.get(name, Own("Why?", ("this or that",) * 3))).items()
]
EXCEPTIONS = EARNS | {"math_verify: the question"}


def build(name: str, line: Example, **params: object) -> Grader:
    return OFFLINE[name].model_validate({**runnable(OFFLINE[name]), **line.params, **params})


def score(grader: Grader, line: Example) -> float:
    given = grader.score(grade_input(line))
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize("name", [name for name, grader in OFFLINE.items() if grader.is_correctness])
def test_the_right_answer_earns_everything(name: str):
    line = OFFLINE[name].examples[0]

    assert score(build(name, line), line) == 1.0
    assert score(build(name, line), replace(line, completion=f"<think>a</think>{line.completion}", tags=TAGS)) == 1.0


@pytest.mark.parametrize(("name", "line"), [case for case in CASES if case.id not in EXCEPTIONS])
def test_a_hack_earns_nothing(name: str, line: Example):
    assert score(build(name, line), line) == 0.0


@pytest.mark.parametrize("id", sorted(EARNS))
def test_a_list_earns_everything_only_where_its_one_guess_stands(id: str):
    name, what = id.split(": ")
    line = OFFLINE[name].examples[0]

    assert score(build(name, line), hacks(line, OWN[name])[what]) == 1.0


def test_with_one_number_at_most_no_list_earns_anything():
    line = OFFLINE["number_exact"].examples[0]
    grader = build("number_exact", line, max_numbers=1)

    assert [score(grader, replace(line, completion=text)) for text in LISTS] == [0.0, 0.0, 0.0]


def test_the_question_given_back_is_the_exception_of_math_verify():
    line = hacks(OFFLINE["math_verify"].examples[0], OWN["math_verify"])["the question"]

    assert score(build("math_verify", line), line) == 1.0
    assert score(build("math_verify", line, require_simplified=True), line) == 0.0


PIECES = (
    "7", "-", "1e9", ",", ".", "/", "^", "{", "}", "[", "(", ")", "$", "\\", "\\boxed{", "\\frac", "\\sqrt", "x", "B",
    "=", " or ", "\n", "<think>", "</think>", "<SOLUTION>", "<a>", '"', ":", "print", "\0", "\ud800", "\u0301", "共",
    "%", "!",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(st.characters(), max_size=5), max_size=40).map("".join)


@pytest.mark.parametrize("name", OFFLINE)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, tagged=st.booleans())
def test_any_text_has_a_score_or_none_within_two_seconds(name: str, text: str, tagged: bool):
    line = OFFLINE[name].examples[0]
    grader = build(name, line)
    grader.load()
    begin = time.process_time()
    try:
        given = score(grader, replace(line, completion=text, tags=TAGS if tagged or grader.needs_tags else None))
    except Abstain:
        given = 0.0

    assert math.isfinite(given) and 0 <= given <= 1
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("name", OFFLINE)
@pytest.mark.parametrize("piece", ["1, ", r"\boxed{a} "])
def test_a_million_characters_take_seconds_at_most(name: str, piece: str):
    line = replace(OFFLINE[name].examples[0], completion=(piece * 1_000_000)[:1_000_000])
    grader = build(name, line)
    grader.load()
    begin = time.process_time()
    with suppress(Abstain):
        score(grader, line)

    assert time.process_time() - begin < 20
