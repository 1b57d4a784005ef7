"""Turn crossword clues and their answers into rows with prompts."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.files import require_file
from posttrain.base.outputs import checked_output, output_lines
from posttrain.base.text import as_shown, counted
from posttrain.data.bad_records import SHOWN_FAULTS
from posttrain.data.readers.json_lines import read_jsonl
from posttrain.dataserver.graders.puzzles.crossword_answers import letters_of, require_fit
from posttrain.errors import DataError

_PROMPT = """\
Solve this crossword clue. The numbers in brackets are the lengths of the answer's words.

{clue} {enumeration}

Give the answer on the last line after "Answer:", such as

Answer: TWO WORDS"""

_AT_THE_END = re.compile(r"\s*(\(\d+(?:[,\-' ]+\d+)*\))\s*$")


@dataclass(frozen=True)
class Clue:
    """A clue without its enumeration, its answer as given, and the enumeration in brackets."""

    text: str
    answer: str
    letters: str
    enumeration: str

    def row(self) -> dict[str, object]:
        """The row of a data set: task, prompt, answer, clue and enumeration."""
        return {
            "task": "crossword",
            "prompt": _PROMPT.format(clue=self.text, enumeration=self.enumeration),
            "answer": self.answer,
            "clue": self.text,
            "enumeration": self.enumeration,
        }


def generate(source: Path, output: Path, *, overwrite: bool) -> None:
    """Write a row for each clue of a file, in its order; clues that come again with the same answer are left out.

    Raises:
        ConfigError: the output must not be written.
        DataError: the clues cannot be read, or some of them cannot be used.
    """
    with checked_output(output, [source], overwrite=overwrite):
        clues = read_clues(source)
        different: dict[tuple[str, str], Clue] = {}
        for clue in clues:
            different.setdefault((clue.text.casefold(), clue.letters), clue)
        with output_lines(output) as write:
            for clue in different.values():
                write(clue.row())
        again = len(clues) - len(different)
        left_out = f", {counted(again, 'clue')} that came again left out" if again else ""
        console.print(f"wrote {output}: {counted(len(different), 'clue')}{left_out}")


def read_clues(path: Path) -> list[Clue]:
    """The clues of a `.jsonl` file, with the keys clue, answer and (if it is not at the end of the clue) enumeration.

    Without an enumeration the answer's own words are counted.

    Raises:
        DataError: there are none, or some cannot be used; one message for the first of them.
    """
    require_file(path)
    clues, faults = list[Clue](), list[str]()
    for line in read_jsonl(path):
        try:
            if line.value is None:
                raise DataError(line.fault)
            clues.append(_clue(line.value))
        except DataError as error:
            faults.append(f"  {as_shown(path)}:{line.number}: {error}")
    if faults:
        hidden = len(faults) - SHOWN_FAULTS
        more = [f"  ... and {hidden:,} more"] if hidden > 0 else []
        head = f"{as_shown(path)}: {counted(len(faults), 'clue')} cannot be used; correct or remove them:"
        raise DataError("\n".join([head, *faults[:SHOWN_FAULTS], *more]))
    if not clues:
        raise DataError(f"{as_shown(path)} contains no clues")
    return clues


def _clue(record: Mapping[str, object]) -> Clue:
    text, answer = _text(record, "clue"), _text(record, "answer")
    letters = letters_of(answer)
    if not letters:
        raise DataError(f"the answer must consist of letters from A to Z, not {answer[:60]!r}")
    at_end = _AT_THE_END.search(text)
    if at_end is not None:
        text = text[: at_end.start()]
    given = record.get("enumeration")
    if given is None:
        given = at_end[1] if at_end is not None else "".join(_counted_words(answer))
    enumeration = f"({str(given).strip().removeprefix('(').removesuffix(')')})"
    require_fit(letters, enumeration)
    if not text:
        raise DataError("clue is empty")
    return Clue(text, answer, letters, enumeration)


def _text(record: Mapping[str, object], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{key} must be text that is not empty; a line is {{clue, answer, enumeration?}}")
    return value.strip()


def _counted_words(answer: str) -> Iterator[str]:
    """The lengths of the words with `,` for a space and `-` for a hyphen between them: 3,4."""
    between = ""
    for word in re.split(r"([\s-]+)", answer):
        letters = letters_of(word)
        if letters:
            yield f"{between}{len(letters)}"
            between = ","
        elif "-" in word:
            between = "-"
