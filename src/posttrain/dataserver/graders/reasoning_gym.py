"""Grader `reasoning_gym`: use the scorer of the reasoning-gym data set that the item comes from.

Some of the library's scorers pass the answer to Python's `eval`, or to SymPy's parser, which calls it, so a model could
run any code. An answer that is let through here cannot call or look up anything but the functions in `_NAMES`.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from posttrain.dataserver.data.procedural import from_json, load_library, make_dataset
from posttrain.dataserver.graders.base import Example, Score, TextGrader, checked_score
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.text.extraction import Extract, extract
from posttrain.errors import ConfigError, DataError

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

# A scorer may sum parts of a score as floats.
_FULL = 1.0 - 1e-9

_SUM = {
    "reasoning_gym": {"dataset": "chain_sum", "seed": 1, "index": 0, "config": {}},
    "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}},
}
_FIRST = {**_SUM, "reasoning_gym": {**_SUM["reasoning_gym"], "dataset": "gsm_symbolic"}}
_COMPLEX = {
    "reasoning_gym": {"dataset": "complex_arithmetic", "seed": 1, "index": 0, "config": {}},
    "entry": {"question": "(1 + 2i) + 3 =", "answer": "4.0 + 2.0i", "metadata": {"result": [4.0, 2.0]}},
}

_LONGEST = 2000

# No parentheses, dots, braces or operators but the minus: only names, numbers and strings in lists.
_LISTS = re.compile(r"[\w\s\[\],'\"-]*")
_ARITHMETIC = re.compile(r"[\d\s+\-*/().]*")
_TERM = re.compile(r"[\w\s+\-*/().,]*")

_NAMES = {"acos", "asin", "atan", "cos", "cosh", "exp", "log", "pi", "sin", "sinh", "sqrt", "tan", "tanh", "Abs"}
_NAME = re.compile(r"[^\W\d]\w*")

# Comparisons with NaN are all false, which some scorers take for "near enough"; converting 1e999999999 to a fraction
# never ends.
_NOT_FINITE = re.compile(r"(?<![^\W\d_])(?:nan|inf(?:inity)?)j?(?![^\W\d_])|[0-9]e[+-]?[0-9]{4,}", re.IGNORECASE)

# A power of a power, or a long exponent, can take hours to compute.
_HUGE_POWER = re.compile(r"\*\*[^*+-]*\*\*|\*\*[\s(+-]*\d{4}")

_FORMS: Mapping[str, re.Pattern[str]] = {
    "binary_matrix": _LISTS,
    "countdown": _ARITHMETIC,
    "intermediate_integration": _TERM,
    "n_queens": _LISTS,
    "simple_integration": _TERM,
    "spiral_matrix": _LISTS,
    "string_insertion": _LISTS,
}


class ReasoningGym(TextGrader):
    """1 if the scorer of the item's own data set gives the answer a full score; else 0.

    The rows must come from a data set of `type: reasoning_gym`. Most of its scorers give something for an answer that
    only contains the right one among others, so less than a full score counts as 0 here unless `exact` is false. A few
    read the first number or word and ignore what follows (`gsm_symbolic`, `letter_jumble`, `spell_backward`,
    `fraction_simplification`, `word_sorting`): there only the first guess counts, and the right answer in second place
    earns nothing. Numbers that are not finite (`nan`, `inf`) are never an answer.
    """

    type: Literal["reasoning_gym"] = "reasoning_gym"

    exact: bool = True
    """Whether a partial score counts as 0; otherwise it counts as it is."""

    extract: Extract = "all"
    """Which part to score: all, boxed, last_number, `{after: "Answer:"}` or `{regex: "..."}`."""

    is_correctness: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("reasoning-gym",)
    preload: ClassVar[tuple[str, ...]] = ("reasoning_gym",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example("7", 1.0, record=_SUM),
        Example(" 7\n", 1.0, record=_SUM, note="white space around it does not count"),
        Example("8", 0.0, record=_SUM),
        Example("6 7 8", 0.0, record=_SUM, note="the scorer gives points for containing the answer"),
        Example("6 7 8", 0.2, record=_SUM, params={"exact": False}, note="1 of 5 characters"),
        Example("7, 8", 0.0, record=_SUM),
        Example("7 8", 1.0, record=_FIRST, note="a scorer that reads the first number: only one guess counts"),
        Example("8 7", 0.0, record=_FIRST),
        Example("nan", 0.0, record=_COMPLEX, note="not a number, and not an answer"),
        Example("So it is \\boxed{7}", 1.0, record=_SUM, params={"extract": "boxed"}),
        Example("7", 0.0, record=_SUM, params={"extract": "boxed"}),
        Example("", 0.0, record=_SUM),
    )

    def load(self) -> None:
        """Import the library; ConfigError if it is not installed."""
        load_library()

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the row is an item of reasoning-gym whose answer, if it has one, gets a full score."""
        dataset, entry = _source(item.record)
        own = entry.get("answer")
        if isinstance(own, str) and dataset.score_answer(own, entry) < _FULL:
            raise DataError(f"the answer {own[:60]!r} of the item does not get a full score from its own data set")

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """The score of the extracted part."""
        answer = extract(text, self.extract)
        if answer is None:
            return Score(0.0, "no answer")
        dataset, entry = _source(item.record)
        if not is_harmless(answer, item.record["reasoning_gym"]["dataset"], entry.get("answer")):
            return Score(0.0, "contains something that no right answer contains")
        try:
            given = float(dataset.score_answer(answer, entry))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001  # some scorers stumble over answers that are not in their form
            return Score(0.0, f"the scorer cannot read it ({type(error).__name__})")
        return float(given >= _FULL) if self.exact else checked_score(min(1.0, max(0.0, given)))


def _source(record: Mapping[str, Any]) -> tuple["ProceduralDataset", dict[str, Any]]:
    """The data set of an item, and the item as the library generated it."""
    source, entry = record.get("reasoning_gym"), record.get("entry")
    if not (isinstance(source, Mapping) and isinstance(source.get("dataset"), str) and isinstance(entry, Mapping)):
        raise DataError(
            "the row is not an item of reasoning-gym; use this grader with a data set of type: reasoning_gym"
        )
    try:
        dataset = _dataset(source["dataset"], json.dumps(source.get("config", {}), sort_keys=True))
    except ConfigError as error:
        raise DataError(str(error)) from None
    return dataset, from_json(entry)


@lru_cache(maxsize=64)
def _dataset(name: str, config: str) -> "ProceduralDataset":
    return make_dataset(name, json.loads(config))


def is_harmless(answer: str, dataset: str, right: object = None) -> bool:
    """Whether the answer is safe to pass to the scorer of that data set. A refused answer is never a right one.

    `right`: the item's own answer, if it has one. If it contains a word such as `inf`, the answer may contain one too.
    """
    if _NOT_FINITE.search(answer) and not (isinstance(right, str) and _NOT_FINITE.search(right)):
        return False
    form = _FORMS.get(dataset)
    if form is None:
        return True
    if len(answer) > _LONGEST or not form.fullmatch(answer) or _HUGE_POWER.search(answer):
        return False
    return form is not _TERM or all(len(name) == 1 or name in _NAMES for name in _NAME.findall(answer))
