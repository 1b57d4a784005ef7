"""The verifiable instructions of IFEval (https://arxiv.org/abs/2311.07911), one function each.

A function takes the response and the arguments that a row gives under the same names. Where the paper's program
uses a tokenizer or a language model of its own, the rule here is simpler, and said in the docstring.
"""

import json
import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, validate_call

from posttrain.dataserver.graders.text.fences import unfenced
from posttrain.dataserver.graders.text.languages import LANGUAGES, guess_language
from posttrain.dataserver.graders.text.visible import plain

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
        raise ValueError("no language code that is known")
    return language


def existence(text: str, keywords: Annotated[list[Text], Field(min_length=1)]) -> bool:
    """Every keyword occurs, also inside of words."""
    text = plain(text).lower()
    return all(plain(keyword).lower() in text for keyword in keywords)


def frequency(text: str, keyword: Text, frequency: Count, relation: Relation) -> bool:
    """The keyword occurs so often, also inside of words."""
    return _compare(plain(text).lower().count(plain(keyword).lower()), frequency, relation)


def forbidden_words(text: str, forbidden_words: Annotated[list[Text], Field(min_length=1)]) -> bool:
    """None of the words occurs."""
    words = "|".join(re.escape(plain(word)) for word in forbidden_words)
    return re.search(rf"(?<!\w)(?:{words})(?!\w)", plain(text), re.IGNORECASE) is None


def letter_frequency(
    text: str, letter: Annotated[str, Field(min_length=1, max_length=1)], let_frequency: Count, let_relation: Relation
) -> bool:
    """The letter occurs so often, large or small."""
    return _compare(text.lower().count(letter.lower()), let_frequency, let_relation)


def response_language(text: str, language: Annotated[str, AfterValidator(_is_known)]) -> bool:
    """The response is in that language, as py3langid tells it."""
    return guess_language(text).language == language


def number_sentences(text: str, num_sentences: Count, relation: Relation) -> bool:
    """So many sentences: a sentence ends with `.`, `!` or `?` before white space; abbreviations count as ends."""
    sentences = [part for part in _SENTENCE_END.split(text) if _WORD.search(part)]
    return _compare(len(sentences), num_sentences, relation)


def number_paragraphs(text: str, num_paragraphs: Count) -> bool:
    """Exactly so many paragraphs with lines of `***` between them, none of them empty."""
    paragraphs = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    inner = paragraphs[bool(not paragraphs[0]) : len(paragraphs) - bool(not paragraphs[-1])]
    return len(inner) == num_paragraphs and all(inner)


def number_words(text: str, num_words: Count, relation: Relation) -> bool:
    """So many words: runs of letters, digits and underscores."""
    return _compare(len(_WORD.findall(text)), num_words, relation)


def nth_paragraph_first_word(text: str, num_paragraphs: Count, nth_paragraph: Count, first_word: Text) -> bool:
    """So many paragraphs with blank lines between them, and one of them begins with that word."""
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    first = paragraphs[nth_paragraph - 1].split()[0]
    return first.strip("\"'“”‘’*_.,!?:;").lower() == first_word.lower()


def number_placeholders(text: str, num_placeholders: Count) -> bool:
    """At least so many placeholders in square brackets."""
    return len(_PLACEHOLDER.findall(text)) >= num_placeholders


def postscript(text: str, postscript_marker: Text) -> bool:
    """A line begins with the marker, such as `P.S.`, and says something after it."""
    return re.search(rf"^[ \t]*{re.escape(postscript_marker)}.*\w", text, re.IGNORECASE | re.MULTILINE) is not None


def number_bullet_lists(text: str, num_bullets: Count) -> bool:
    """Exactly so many bullet points that begin with `*` or `-`."""
    return len(_BULLET.findall(text)) == num_bullets


def constrained_response(text: str) -> bool:
    """Exactly one of: My answer is yes. My answer is no. My answer is maybe."""
    return sum(text.count(option) for option in _OPTIONS) == 1


def number_highlighted_sections(text: str, num_highlights: Count) -> bool:
    """At least so many parts between single or double asterisks."""
    return sum(bool(_WORD.search(part)) for part in _HIGHLIGHT.findall(text)) >= num_highlights


def multiple_sections(text: str, section_spliter: Text, num_sections: Count) -> bool:
    """At least so many sections that begin with the splitter and a number, such as `Section 1`."""
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", text)) >= num_sections


def json_format(text: str) -> bool:
    """The response is a JSON object or list, which may be fenced."""
    try:
        return isinstance(json.loads(unfenced(text) or text), dict | list)
    except (ValueError, RecursionError):
        return False


def title(text: str) -> bool:
    """There is a title in double angular brackets: `<<title>>`."""
    return any(map(str.strip, _TITLE.findall(text)))


def two_responses(text: str) -> bool:
    """Two different responses with `******` between them."""
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def repeat_prompt(text: str, prompt_to_repeat: Text) -> bool:
    """The prompt is repeated word for word first, and more follows."""
    said, prompt = text.strip().lower(), prompt_to_repeat.strip().lower()
    return said.startswith(prompt) and len(said) > len(prompt)


def end_checker(text: str, end_phrase: Text) -> bool:
    """The response ends with the phrase, quotation marks aside."""
    return text.strip().strip('"').strip().lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    """All of the response stands in double quotation marks."""
    text = text.strip()
    return len(text) > 2 and text[0] == text[-1] == '"'


def capital_word_frequency(text: str, capital_frequency: Count, capital_relation: Relation) -> bool:
    """So many words in capital letters, `I` and `A` among them."""
    return _compare(sum(map(str.isupper, _WORD.findall(text))), capital_frequency, capital_relation)


def english_capital(text: str) -> bool:
    """English, without small letters."""
    return text.isupper() and _is_english(text)


def english_lowercase(text: str) -> bool:
    """English, without capital letters."""
    return text.islower() and _is_english(text)


def no_comma(text: str) -> bool:
    """No comma, of normal or full width."""
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
"""Each instruction's id, and what tells whether it was followed; ValidationError where arguments are wrong."""
