"""Generate Rush Hour boards, each with its smallest number of moves and a solution of that length."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from posttrain.base.console import Counting, console
from posttrain.base.outputs import checked_output, output_lines
from posttrain.base.text import counted
from posttrain.dataserver.graders.puzzles.sliding_blocks import TARGET, Move, distances, parse_board, solution
from posttrain.errors import ConfigError

SIZE = 6
_TARGET_ROW = 2
# How often to try to place a piece: crowded boards are harder, and quicker to search.
_TRIES = (60, 400)
# Boards with more positions are left out: they take long to search, and are no harder.
_MOST_POSITIONS = 2_500
# How many boards in a row may give nothing new.
_FRUITLESS = 2_000

_PROMPT = """\
This is a Rush Hour puzzle on a board of 6 × 6 cells. Each letter is a piece, and o is an empty cell. Pieces slide \
along their own axis, by any number of cells, but not through each other or off the board. Move piece A to the right \
until it reaches the last column, in as few moves as possible.

{board}

A move is written as the piece, a direction (< left, > right, ^ up, v down), and the number of cells, such as B^2. \
Sliding one piece by several cells in one direction is one move. Give all moves, separated by commas, on the last line \
after "Answer:", such as

Answer: B^2, A>3"""


class Puzzle(NamedTuple):
    """A board as text, and a shortest solution of it."""

    board: str
    moves: tuple[Move, ...]

    def row(self) -> dict[str, object]:
        """The row of a data set: task, prompt, answer, board, and the smallest number of moves."""
        grid = "\n".join(" ".join(self.board[row : row + SIZE]) for row in range(0, SIZE**2, SIZE))
        answer = ", ".join(map(str, self.moves))
        return {
            "task": "rush_hour",
            "prompt": _PROMPT.format(board=grid),
            "answer": answer,
            "board": self.board,
            "moves": len(self.moves),
        }


def generate(output: Path, count: int, least: int, most: int, *, seed: int, overwrite: bool) -> None:
    """Write `count` rows as `puzzles` gives them, and print how many there are of each number of moves.

    Raises:
        ConfigError: the output must not be written, the range is empty, or too few such boards were found.
    """
    if least > most:
        raise ConfigError(f"--min-moves {least} is more than --max-moves {most}")
    found: Counter[int] = Counter()
    with (
        checked_output(output, [], overwrite=overwrite),
        Counting("generating", "boards", count) as progress,
        output_lines(output) as write,
    ):
        for puzzle in puzzles(count, least, most, seed):
            write(puzzle.row())
            found[len(puzzle.moves)] += 1
            progress.advance()
    shares = ", ".join(f"{boards:,} of {moves}" for moves, boards in sorted(found.items()))
    console.print(f"wrote {output}: {counted(count, 'board')}, by their smallest numbers of moves: {shares}")


def puzzles(count: int, least: int, most: int, seed: int) -> Iterator[Puzzle]:
    """Different boards whose smallest numbers of moves are from `least` to `most`.

    A random board is searched with all positions that it can be brought into. Of those, one is taken whose number of
    moves is the rarest so far, so that all numbers are as frequent as the boards allow. The puzzles are a function of
    the arguments, and a larger `count` only adds to them.

    Raises:
        ConfigError: too many boards in a row gave nothing new.
    """
    chance = random.Random(seed)
    seen: set[str] = set()
    frequency = Counter[int]()
    tries = 0
    while len(seen) < count:
        tries += 1
        if tries > _FRUITLESS:
            raise ConfigError(
                f"only {counted(len(seen), 'board')} of {least} to {most} moves could be found; ask for fewer, or "
                "change --min-moves or --max-moves"
            )
        board = parse_board(_random_board(chance))
        distance = distances(board, _MOST_POSITIONS) or {}
        lengths = {moves for moves in distance.values() if least <= moves <= most}
        if not lengths:
            continue
        rarest = min(lengths, key=lambda moves: (frequency[moves], -moves))
        state = chance.choice([state for state, moves in distance.items() if moves == rarest])
        puzzle = _with_names_in_order(board.text(state), solution(board, state, distance))
        if puzzle.board not in seen:
            seen.add(puzzle.board)
            frequency[rarest] += 1
            tries = 0
            yield puzzle


def _random_board(chance: random.Random) -> str:
    cells = ["o"] * SIZE**2
    first = _TARGET_ROW * SIZE + chance.randrange(SIZE - 1)
    cells[first : first + 2] = TARGET * 2
    names = iter("BCDEFGHIJKLMNOPQRSTUVWXYZ")
    for _ in range(chance.randint(*_TRIES)):
        length, is_horizontal = chance.choice((2, 2, 3)), chance.random() < 0.5
        line, place = chance.randrange(SIZE), chance.randrange(SIZE - length + 1)
        if is_horizontal and line == _TARGET_ROW:
            continue  # to the right of the target it could never be passed
        start, stride = (line * SIZE + place, 1) if is_horizontal else (place * SIZE + line, SIZE)
        taken = slice(start, start + stride * length, stride)
        if set(cells[taken]) == {"o"}:
            cells[taken] = next(names) * length
    return "".join(cells)


def _with_names_in_order(board: str, moves: Iterable[Move]) -> Puzzle:
    """The puzzle with the pieces named in the order in which they are read, so that equal boards are equal text."""
    found = dict.fromkeys(sign for sign in board if sign not in ("o", TARGET))
    names = dict(zip(found, "BCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False)) | {TARGET: TARGET}
    renamed = tuple(move._replace(piece=names[move.piece]) for move in moves)
    return Puzzle("".join(names.get(sign, sign) for sign in board), renamed)
