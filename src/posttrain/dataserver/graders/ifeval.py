"""Grader `ifeval`: check that the answer follows the verifiable instructions of its row.

Each instruction of IFEval (https://arxiv.org/abs/2311.07911) is a function of the response and the arguments that a
row gives under the same names. Where the paper's program uses a tokenizer or a language model of its own, the rule
here is simpler and stated in the docstring.
"""

import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationError, validate_call

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.language import LANGUAGES, guess_language, load_languages
from posttrain.dataserver.graders.text.completions import GradeInput, plain, without_invisible
from posttrain.dataserver.graders.text.fenced import unfenced
from posttrain.errors import DataError

Check = Callable[..., bool]
Relation = Literal["less than", "at least"]
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*+(?:\s|$)|[。！？]")
_BULLET = re.compile(r"^[ \t]*[*-][ \t]+\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*\*[^*\n]+\*\*|\*[^*\n]+\*")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_TITLE = re.compile(r"<<([^<>\n]+)>>")
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_RARELY_SURE = 0.5


def _is_known(language: str) -> str:
    if language not in LANGUAGES:
        raise ValueError("not a known language code")
    return language


def existence(text: str, keywords: Annotated[list[Text], Field(min_length=1)]) -> bool:
    """Every keyword occurs, on its own or inside a word."""
    text = plain(text).lower()
    return all(plain(keyword).lower() in text for keyword in keywords)


def frequency(text: str, keyword: Text, frequency: Count, relation: Relation) -> bool:
    """The keyword occurs `relation` `frequency` times, on its own or inside words."""
    return _compare(plain(text).lower().count(plain(keyword).lower()), frequency, relation)


def forbidden_words(text: str, forbidden_words: Annotated[list[Text], Field(min_length=1)]) -> bool:
    """None of the words occurs as a whole word."""
    words = "|".join(re.escape(plain(word)) for word in forbidden_words)
    return re.search(rf"(?<!\w)(?:{words})(?!\w)", plain(text), re.IGNORECASE) is None


def letter_frequency(
    text: str, letter: Annotated[str, Field(min_length=1, max_length=1)], let_frequency: Count, let_relation: Relation
) -> bool:
    """The letter occurs `let_relation` `let_frequency` times, in either case."""
    return _compare(text.lower().count(letter.lower()), let_frequency, let_relation)


def response_language(text: str, language: Annotated[str, AfterValidator(_is_known)]) -> bool:
    """The response is in that language, according to py3langid."""
    return guess_language(text).language == language


def number_sentences(text: str, num_sentences: Count, relation: Relation) -> bool:
    """The number of sentences is `relation` `num_sentences`.

    A sentence ends with `.`, `!` or `?` before white space, or with their Chinese forms; abbreviations count as ends.
    """
    sentences = [part for part in _SENTENCE_END.split(text) if _WORD.search(part)]
    return _compare(len(sentences), num_sentences, relation)


def number_paragraphs(text: str, num_paragraphs: Count) -> bool:
    """Exactly `num_paragraphs` paragraphs with `***` between them, none of them empty."""
    paragraphs = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    inner = paragraphs[bool(not paragraphs[0]) : len(paragraphs) - bool(not paragraphs[-1])]
    return len(inner) == num_paragraphs and all(inner)


def number_words(text: str, num_words: Count, relation: Relation) -> bool:
    """The number of words, i.e. runs of letters, digits and underscores, is `relation` `num_words`."""
    return _compare(len(_WORD.findall(text)), num_words, relation)


def nth_paragraph_first_word(text: str, num_paragraphs: Count, nth_paragraph: Count, first_word: Text) -> bool:
    """Exactly `num_paragraphs` paragraphs with blank lines between them, and the given one begins with that word."""
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    first = paragraphs[nth_paragraph - 1].split()[0]
    return first.strip("\"'“”‘’*_.,!?:;").lower() == first_word.lower()


def number_placeholders(text: str, num_placeholders: Count) -> bool:
    """At least `num_placeholders` placeholders in square brackets."""
    return len(_PLACEHOLDER.findall(text)) >= num_placeholders


def postscript(text: str, postscript_marker: Text) -> bool:
    """A line begins with the marker, such as `P.S.`, and says something after it."""
    return re.search(rf"^[ \t]*{re.escape(postscript_marker)}.*\w", text, re.IGNORECASE | re.MULTILINE) is not None


def number_bullet_lists(text: str, num_bullets: Count) -> bool:
    """Exactly `num_bullets` bullet points that begin with `*` or `-`."""
    return len(_BULLET.findall(text)) == num_bullets


def constrained_response(text: str) -> bool:
    """Exactly one of these, once: My answer is yes. My answer is no. My answer is maybe."""
    return sum(text.count(option) for option in _OPTIONS) == 1


def number_highlighted_sections(text: str, num_highlights: Count) -> bool:
    """At least `num_highlights` parts between single or double asterisks."""
    return sum(bool(_WORD.search(part)) for part in _HIGHLIGHT.findall(text)) >= num_highlights


def multiple_sections(text: str, section_spliter: Text, num_sections: Count) -> bool:
    """At least `num_sections` sections that begin with the splitter and a number, such as `Section 1`."""
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", text)) >= num_sections


def json_format(text: str) -> bool:
    """The response is a JSON object or list, which may be fenced."""
    try:
        return isinstance(json.loads(unfenced(text) or text), dict | list)
    except (ValueError, RecursionError):
        return False


def title(text: str) -> bool:
    """There is a title in double angle brackets: `<<title>>`."""
    return any(map(str.strip, _TITLE.findall(text)))


def two_responses(text: str) -> bool:
    """Two different responses with `******` between them."""
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def repeat_prompt(text: str, prompt_to_repeat: Text) -> bool:
    """The response begins with the prompt, word for word except for case, and more follows."""
    said, prompt = text.strip().lower(), prompt_to_repeat.strip().lower()
    return said.startswith(prompt) and len(said) > len(prompt)


def end_checker(text: str, end_phrase: Text) -> bool:
    """The response ends with the phrase, quotation marks aside."""
    return text.strip().strip('"').strip().lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    """The whole response is in double quotation marks."""
    text = text.strip()
    return len(text) > 2 and text[0] == text[-1] == '"'


def capital_word_frequency(text: str, capital_frequency: Count, capital_relation: Relation) -> bool:
    """The number of words in capital letters, `I` and `A` included, is `capital_relation` `capital_frequency`."""
    return _compare(sum(map(str.isupper, _WORD.findall(text))), capital_frequency, capital_relation)


def english_capital(text: str) -> bool:
    """English without lower-case letters."""
    return text.isupper() and _is_english(text)


def english_lowercase(text: str) -> bool:
    """English without upper-case letters."""
    return text.islower() and _is_english(text)


def no_comma(text: str) -> bool:
    """No comma of normal or full width."""
    return "," not in text and "，" not in text


def _compare(found: int, wanted: int, relation: Relation) -> bool:
    return found < wanted if relation == "less than" else found >= wanted


def _is_english(text: str) -> bool:
    guess = guess_language(text)
    return guess.language == "en" or guess.confidence < _RARELY_SURE


_GROUPS: dict[str, tuple[Check, ...]] = {
    "change_case": (capital_word_frequency, english_capital, english_lowercase),
    "combination": (repeat_prompt, two_responses),
    "detectable_content": (number_placeholders, postscript),
    "detectable_format": (
        *(constrained_response, json_format, multiple_sections, number_bullet_lists),
        *(number_highlighted_sections, title),
    ),
    "keywords": (existence, forbidden_words, frequency, letter_frequency),
    "language": (response_language,),
    "length_constraints": (nth_paragraph_first_word, number_paragraphs, number_sentences, number_words),
    "punctuation": (no_comma,),
    "startend": (end_checker, quotation),
}

CHECKS = {f"{group}:{check.__name__}": validate_call(check) for group, checks in _GROUPS.items() for check in checks}
"""Each instruction's id and its function, which raises ValidationError if the arguments are wrong."""


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
    """1 if the answer follows all instructions of its row, else 0; or the share that it follows.

    Rows have the form of IFEval (https://arxiv.org/abs/2311.07911) and data sets modelled on it: a list of instruction
    ids such as `punctuation:no_comma`, and a list of their arguments. All 25 ids of the paper are supported.
    """

    type: Literal["ifeval"] = "ifeval"

    mode: Literal["all", "fraction"] = "all"
    """Whether all instructions must be followed, or each one counts."""

    ids_column: str = Field(default="instruction_id_list", min_length=1)
    """Column with the list of instruction ids."""

    arguments_column: str = Field(default="kwargs", min_length=1)
    """Column with the list of their arguments, one object each; keys that are null are ignored."""

    libraries: ClassVar[tuple[str, ...]] = ("py3langid",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example("Three short words", 1.0, record=_SHORT),
        Example("One, two", 0.0, record=_SHORT, note="one of two instructions"),
        Example("One, two", 0.5, record=_SHORT, params={"mode": "fraction"}),
        Example("Five words are too many", 0.0, record=_SHORT),
        Example("* one\n* two", 1.0, record=_row(("detectable_format:number_bullet_lists", {"num_bullets": 2}))),
        Example("", 0.0, record=_SHORT, note="an empty answer follows nothing"),
        Example("\u200b", 0.0, record=_SHORT, note="nor does an invisible one"),
        Example("I am so\u200brry", 0.0, record=_row(("keywords:forbidden_words", {"forbidden_words": ["sorry"]}))),
        Example("I am ｓｏｒｒｙ", 0.0, record=_row(("keywords:forbidden_words", {"forbidden_words": ["sorry"]}))),
    )

    def load(self) -> None:
        """Load the language identification model."""
        load_languages()

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless all ids are known and have the right arguments."""
        for instruction in self._instructions(item.record):
            _is_followed(instruction, "x")

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """The share of instructions that are followed (with `mode: fraction`), or 1 if all are and else 0."""
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
            raise DataError(f"the column {self.ids_column!r} must contain a list of instruction ids")
        count = len(names)
        if not (
            isinstance(arguments, list)
            and len(arguments) == count
            and all(given is None or isinstance(given, Mapping) for given in arguments)
        ):
            raise DataError(f"the column {self.arguments_column!r} must contain a list of {count} objects, one per id")
        return [
            _Instruction(name, {key: _seen(value) for key, value in (given or {}).items() if value is not None})
            for name, given in zip(names, arguments, strict=True)
        ]


def _seen(argument: Any) -> Any:
    """The argument without invisible characters, like the text that it is compared with."""
    if isinstance(argument, list):
        return [_seen(item) for item in argument]
    return without_invisible(argument) if isinstance(argument, str) else argument


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
