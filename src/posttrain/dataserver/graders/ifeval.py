"""ifeval: the answer follows the verifiable instructions of its row."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, ValidationError

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.ifeval_checks import CHECKS
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.text.languages import load_languages
from posttrain.dataserver.graders.text.visible import without_invisible
from posttrain.errors import DataError


class _Instruction(NamedTuple):
    name: str
    arguments: Mapping[str, Any]


def _row(*instructions: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    names, arguments = zip(*instructions, strict=True)
    return {"instruction_id_list": list(names), "kwargs": list(arguments)}


_SHORT = _row(
    ("length_constraints:number_words", {"num_words": 5, "relation": "less than"}), ("punctuation:no_comma", {})
)


class IfEval(TextGrader):
    """1 if the answer follows all instructions of its row, or the share that it follows; else 0.

    The rows are those of IFEval (https://arxiv.org/abs/2311.07911) and of the data sets made like it: a list of
    instruction ids such as `punctuation:no_comma`, and a list of their arguments. All 25 ids of the paper are known.
    """

    type: Literal["ifeval"] = "ifeval"

    mode: Literal["all", "fraction"] = "all"
    """Whether all instructions must be followed, or each one counts."""

    ids_column: str = Field(default="instruction_id_list", min_length=1)
    """Column with the list of instruction ids."""

    arguments_column: str = Field(default="kwargs", min_length=1)
    """Column with the list of their arguments, an object each; keys that are null do not count."""

    libraries: ClassVar[tuple[str, ...]] = ("py3langid",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example("Three short words", 1.0, record=_SHORT),
        Example("One, two", 0.0, record=_SHORT, note="one instruction of two"),
        Example("One, two", 0.5, record=_SHORT, params={"mode": "fraction"}),
        Example("Five words are too many", 0.0, record=_SHORT),
        Example("* one\n* two", 1.0, record=_row(("detectable_format:number_bullet_lists", {"num_bullets": 2}))),
        Example("", 0.0, record=_SHORT, note="an empty answer follows nothing"),
        Example("\u200b", 0.0, record=_SHORT, note="nor does one that cannot be seen"),
        Example("I am so\u200brry", 0.0, record=_row(("keywords:forbidden_words", {"forbidden_words": ["sorry"]}))),
        Example("I am ｓｏｒｒｙ", 0.0, record=_row(("keywords:forbidden_words", {"forbidden_words": ["sorry"]}))),
    )

    def load(self) -> None:
        """Load the model that tells languages apart."""
        load_languages()

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless all ids are known and have the arguments that they want."""
        for instruction in self._instructions(item.record):
            _is_followed(instruction, "x")

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """The share of instructions that are followed, or 1 where all are and else 0."""
        text = without_invisible(text)
        if not text.strip():
            return Score(0.0, "empty")
        instructions = self._instructions(item.record)
        missed = [instruction.name for instruction in instructions if not _is_followed(instruction, text)]
        share = 1 - len(missed) / len(instructions)
        return Score(share if self.mode == "fraction" else float(not missed), ", ".join(missed))

    def _instructions(self, record: Mapping[str, Any]) -> list[_Instruction]:
        names, arguments = record.get(self.ids_column), record.get(self.arguments_column)
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise DataError(f"the column {self.ids_column!r} must hold a list of instruction ids")
        count = len(names)
        if not (isinstance(arguments, list) and len(arguments) == count and all(map(_is_object, arguments))):
            raise DataError(f"the column {self.arguments_column!r} must hold a list of {count} objects, one per id")
        return [
            _Instruction(name, {key: _seen(value) for key, value in (given or {}).items() if value is not None})
            for name, given in zip(names, arguments, strict=True)
        ]


def _seen(argument: Any) -> Any:
    """As the text is looked at: without characters that leave no mark."""
    if isinstance(argument, list):
        return [_seen(item) for item in argument]
    return without_invisible(argument) if isinstance(argument, str) else argument


def _is_object(arguments: object) -> bool:
    return arguments is None or isinstance(arguments, Mapping)


def _is_followed(instruction: _Instruction, text: str) -> bool:
    check = CHECKS.get(instruction.name)
    if check is None:
        near = get_close_matches(instruction.name, CHECKS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(f"there is no instruction {instruction.name!r}{hint}")
    try:
        return check(text, **instruction.arguments)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"the arguments of {instruction.name} are wrong: {where}: {first['msg']}") from None
