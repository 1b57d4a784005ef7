"""Generate small crosswords: words of a file of clues that cross each other in a grid."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from posttrain.base.console import Counting, console
from posttrain.base.outputs import checked_output, output_lines
from posttrain.base.text import counted
from posttrain.errors import ConfigError
from posttrain.synthesis.crossword import Clue, read_clues

_FEWEST_LETTERS = 3
# How many grids in a row may give nothing new.
_FRUITLESS = 500

_PROMPT = """\
Solve this crossword. In the grid, # is a blocked cell, _ is an empty one, and a number is an empty one in which the \
answers of that number begin. The numbers in brackets are the lengths of an answer's words.

{grid}

Across:
{across}

Down:
{down}

Give all answers on the last line after "Answer:", first those across and then those down, in the order of the clues, \
separated by commas, such as

Answer: ONE, TWO WORDS, THREE"""


@dataclass(frozen=True)
class Placed:
    """A clue whose answer begins in a cell and runs across or down."""

    clue: Clue
    row: int
    column: int
    is_down: bool

    def cells(self) -> list[tuple[int, int]]:
        """The (row, column) of each letter."""
        return [
            (self.row + step, self.column) if self.is_down else (self.row, self.column + step)
            for step in range(len(self.clue.letters))
        ]


@dataclass
class Grid:
    """A square grid, and the words placed in it so far."""

    size: int
    words: list[Placed] = field(default_factory=list)
    letters: dict[tuple[int, int], str] = field(default_factory=dict)
    directions: set[tuple[tuple[int, int], bool]] = field(default_factory=set)
    """Each cell of a word, with whether the word runs down."""

    def place(self, word: Placed) -> None:
        """Add a word that fits."""
        self.words.append(word)
        self.letters.update(zip(word.cells(), word.clue.letters, strict=True))
        self.directions.update((cell, word.is_down) for cell in word.cells())

    def crossings(self, word: Placed) -> int | None:
        """How many words it would cross; None if it does not fit, or would touch another without crossing it."""
        cells, aside = word.cells(), (0, 1) if word.is_down else (1, 0)
        (top, left), (bottom, right) = cells[0], cells[-1]
        if bottom >= self.size or right >= self.size:
            return None
        if {(top - aside[1], left - aside[0]), (bottom + aside[1], right + aside[0])} & self.letters.keys():
            return None
        for (row, column), letter in zip(cells, word.clue.letters, strict=True):
            if self.letters.get((row, column), letter) != letter or ((row, column), word.is_down) in self.directions:
                return None
            beside = {(row - aside[0], column - aside[1]), (row + aside[0], column + aside[1])}
            if (row, column) not in self.letters and beside & self.letters.keys():
                return None
        return sum(cell in self.letters for cell in cells)

    def row(self) -> dict[str, object]:
        """The row of a data set: task, prompt, answer, and the rows of the solved grid."""
        starts = sorted({(word.row, word.column) for word in self.words})
        numbers = {start: number for number, start in enumerate(starts, start=1)}
        everywhere = list(product(range(self.size), range(self.size)))
        signs = {cell: str(numbers.get(cell, "_")) if cell in self.letters else "#" for cell in everywhere}
        ordered = sorted(self.words, key=lambda word: (word.is_down, numbers[word.row, word.column]))
        asked = [f"{numbers[word.row, word.column]}. {word.clue.text} {word.clue.enumeration}" for word in ordered]
        across = sum(not word.is_down for word in ordered)
        shown = _PROMPT.format(
            grid="\n".join(
                " ".join(f"{signs[row, column]:>2}" for column in range(self.size)) for row in range(self.size)
            ),
            across="\n".join(asked[:across]),
            down="\n".join(asked[across:]),
        )
        solved = "".join(self.letters.get(cell, "#") for cell in everywhere)
        return {
            "task": "crossword_grid",
            "prompt": shown,
            "answer": ", ".join(word.clue.answer for word in ordered),
            "grid": [solved[start : start + self.size] for start in range(0, self.size**2, self.size)],
        }


def generate(source: Path, output: Path, count: int, *, words: int, size: int, seed: int, overwrite: bool) -> None:
    """Write `count` rows as `grids` gives them.

    Raises:
        ConfigError: the output must not be written, or too few such grids were found.
        DataError: the clues cannot be read, or some of them cannot be used.
    """
    with checked_output(output, [source], overwrite=overwrite):
        clues = read_clues(source)
        with Counting("generating", "grids", count) as progress, output_lines(output) as write:
            for grid in grids(clues, count, words=words, size=size, seed=seed):
                write(grid.row())
                progress.advance()
    console.print(f"wrote {output}: {counted(count, 'grid')} of {words} words")


def grids(clues: Sequence[Clue], count: int, *, words: int, size: int, seed: int) -> Iterator[Grid]:
    """Different grids of `size` × `size` cells with `words` words, each of which crosses another one.

    The grids are a function of the arguments, and a larger `count` only adds to them.

    Raises:
        ConfigError: too many grids in a row had too few words or were not new.
    """
    usable = list({clue.letters: clue for clue in clues if _FEWEST_LETTERS <= len(clue.letters) <= size}.values())
    chance = random.Random(seed)
    seen: set[frozenset[Placed]] = set()
    tries = 0
    while len(seen) < count:
        tries += 1
        if tries > _FRUITLESS:
            raise ConfigError(
                f"only {counted(len(seen), 'grid')} of {words} words in {size} × {size} cells could be made of "
                f"{counted(len(usable), 'answer')} of {_FEWEST_LETTERS} to {size} letters; add clues, or change "
                "--words or --size"
            )
        grid = _filled(chance.sample(usable, len(usable)), words, size)
        if grid is not None and frozenset(grid.words) not in seen:
            seen.add(frozenset(grid.words))
            tries = 0
            yield grid


def _filled(clues: Sequence[Clue], words: int, size: int) -> Grid | None:
    """A grid with the first clues that fit, each where it crosses most words; None if too few fit."""
    grid = Grid(size)
    for clue in clues:
        if len(grid.words) == words:
            break
        if not grid.words:
            grid.place(Placed(clue, size // 2, (size - len(clue.letters)) // 2, is_down=False))
            continue
        places = (Placed(clue, *place) for place in product(range(size), range(size), (False, True)))
        fitting = [(crossed, place) for place in places if (crossed := grid.crossings(place))]
        if fitting:
            grid.place(max(fitting, key=lambda found: found[0])[1])
    return grid if len(grid.words) == words else None
