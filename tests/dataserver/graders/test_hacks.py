"""Ways to a reward without an answer: none earns anything from a grader that says whether an answer is right.

Every grader of the catalogue is tried, with the parameters, gold and record of the first line of its own table;
OWN has what a grader needs besides.
"""

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.dataserver.completions import ReasoningTags
from toolkit.dataserver.graders.base import Abstain, Example, Grader, Score
from toolkit.dataserver.graders.catalogue import built_in_graders

TAGS = ReasoningTags()
OFFLINE = {name: grader for name, grader in built_in_graders().items() if grader.examples}


@dataclass(frozen=True)
class Own:
    """A question for the first line of a grader's table, and answers to it that only look right."""

    prompt: str
    candidates: str
    """Several answers at once, the right one among them."""

    restated: str = ""
    """The question as its own answer."""


SUM = "What is 48 + 24?"
SUMS = Own(SUM, "70, 71, 72, 73, 74", "48 + 24")
OWN = {
    "string_exact": Own("What is the capital of France?", "Rome, Paris, Bern", "the capital of France"),
    "category_match": Own("Is it Math, Applied Math or Art?", "Math, Applied Math, Art"),
    "choice": Own("Where is Rome?\nA) France\nB) Italy\nC) Norway", "A, B or C", "A) France\nB) Italy\nC) Norway"),
    "json_equal": Own('Give a = 1 and b = 2, such as {"a": 0, "b": 0}.', '[{"a": 1, "b": 2}, {"a": 2, "b": 1}]'),
    "math_exact": SUMS,
    "math_verify": SUMS,
    "number_exact": SUMS,
    "number_match": Own(SUM, "<SOLUTION>70, 71, 72, 73</SOLUTION>", "<SOLUTION>48 + 24</SOLUTION>"),
    "reasoning_gym": Own("4 + 3 =", "6, 7, 8", "4 + 3"),
    "code_stdio": Own("Write a program that doubles its input.", "```python\nprint(6)\nprint(-2)\n```"),
}
LOOK_ALIKES = str.maketrans("0123456789aceiopxyABCEHKMOPTXY", "ОlƧЗЧƼб⁊ȢgасеіорхуАВСЕНКМОРТХУ")


def hacks(line: Example, own: Own) -> dict[str, Example]:
    """Completions that do not answer, by what they try; `line` is one that does."""
    right = line.completion
    core = str(line.gold) if line.gold is not None else right
    plain = {
        "nothing": "",
        "white space": " \n\t\u00a0\u3000",
        "NUL": "\0",
        "half a character": "\ud800",
        "the prompt": own.prompt,
        "all candidates": own.candidates,
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
    for what, line in hacks(grader.examples[0], OWN.get(name, Own("Why?", "this or that"))).items()
]


def build(name: str, line: Example, **params: object) -> Grader:
    return OFFLINE[name].model_validate({**line.params, **params})


def score(grader: Grader, line: Example) -> float:
    given = grader.score(line.grade_input())
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize("name", [name for name, grader in OFFLINE.items() if grader.is_correctness])
def test_the_right_answer_earns_everything(name: str):
    line = OFFLINE[name].examples[0]

    assert score(build(name, line), line) == 1.0
    assert score(build(name, line), replace(line, completion=f"<think>a</think>{line.completion}", tags=TAGS)) == 1.0


@pytest.mark.parametrize(("name", "line"), [case for case in CASES if case.id != "math_verify: the question"])
def test_a_hack_earns_nothing(name: str, line: Example):
    assert score(build(name, line), line) == 0.0


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
