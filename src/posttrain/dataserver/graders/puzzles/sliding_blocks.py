"""Rush Hour: read boards and lists of moves, simulate them, and search for shortest solutions.

A board is square. Its text has one character per cell, row by row: `o` or `.` is empty, `x` a wall, and A to Z are
pieces, straight, of two or more cells. A is horizontal, and the board is solved when its right end is in the last
column. A move slides one piece any number of cells along its axis.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from posttrain.errors import DataError

SMALLEST, LARGEST = 3, 10
"""Cells along a side."""

TARGET = "A"

State = tuple[int, ...]
"""For each piece, in the order of `Board.pieces`, the column (if horizontal) or row of its first cell."""

_CELLS = re.compile("[ox.A-Z]+")
_MOVE = re.compile(r"([A-Z])[ \t]?([<>^vVUDLR])[ \t]?([1-9][0-9]?)")
# Direction as a sign to write, and along which axis and which way it leads.
_DIRECTIONS = {"L": "<", "R": ">", "U": "^", "D": "v", "V": "v"}
_HORIZONTAL = {"<": -1, ">": 1}
_VERTICAL = {"^": -1, "v": 1}


class Move(NamedTuple):
    """Slide `piece` by `steps` cells in a direction, one of `<`, `>`, `^` and `v`."""

    piece: str
    direction: str
    steps: int

    def __str__(self) -> str:
        return f"{self.piece}{self.direction}{self.steps}"


def parse_moves(text: str) -> list[Move] | None:
    """The moves of a comma-separated list such as `B>2, C^1`; consecutive ones of a piece in one direction are merged.

    U, D, L, R and V are read as `^`, `v`, `<`, `>` and `v`. None if the text is anything else.
    """
    moves: list[Move] = []
    for part in text.split(","):
        match = _MOVE.fullmatch(part.strip())
        if match is None:
            return None
        piece, sign, steps = match.groups()
        move = Move(piece, _DIRECTIONS.get(sign, sign), int(steps))
        if moves and moves[-1][:2] == move[:2]:
            move = move._replace(steps=moves.pop().steps + move.steps)
        moves.append(move)
    return moves


@dataclass(frozen=True)
class Piece:
    """A piece; `line` is the row (if horizontal) or column in which it slides, `length` its number of cells."""

    name: str
    is_horizontal: bool
    line: int
    length: int


@dataclass(frozen=True)
class Board:
    """The pieces and walls of a board, and where the pieces are at first."""

    size: int
    pieces: tuple[Piece, ...]
    """The target is the first."""
    walls: int
    """A bit for each cell; cell (row, column) is bit row · size + column."""
    start: State

    def slid(self, state: State, move: Move) -> State | None:
        """The state after a move; None if it is not legal: no such piece or direction, or something in the way."""
        number = self._numbers.get(move.piece)
        if number is None:
            return None
        step = (_HORIZONTAL if self.pieces[number].is_horizontal else _VERTICAL).get(move.direction)
        if step is None:
            return None
        reached = list(self._reached(state, number, step, self._occupied(state)))
        return reached[move.steps - 1] if move.steps <= len(reached) else None

    def neighbours(self, state: State) -> Iterator[State]:
        """Every state that is one move away."""
        occupied = self._occupied(state)
        for number in range(len(self.pieces)):
            yield from self._reached(state, number, -1, occupied)
            yield from self._reached(state, number, 1, occupied)

    def is_solved(self, state: State) -> bool:
        """Whether the right end of the target is in the last column."""
        return state[0] + self.pieces[0].length == self.size

    def obstruction(self, state: State) -> int:
        """Cells between the target and the last column, plus the number of pieces in them; 0 if it is solved."""
        row, first = self.pieces[0].line, state[0] + self.pieces[0].length
        ahead = sum(1 << (row * self.size + column) for column in range(first, self.size))
        blockers = sum(bool(self._masks[number][place] & ahead) for number, place in enumerate(state))
        return self.size - first + blockers

    def move_between(self, one: State, other: State) -> Move:
        """The move that leads from a state to a neighbour."""
        number = next(number for number, (here, there) in enumerate(zip(one, other, strict=True)) if here != there)
        by, piece = other[number] - one[number], self.pieces[number]
        forward, back = (">", "<") if piece.is_horizontal else ("v", "^")
        return Move(piece.name, forward if by > 0 else back, abs(by))

    def text(self, state: State) -> str:
        """The cells, row by row."""
        cells = ["x" if self.walls >> cell & 1 else "o" for cell in range(self.size**2)]
        for piece, mask in zip(self.pieces, self._taken(state), strict=True):
            for cell in range(self.size**2):
                if mask >> cell & 1:
                    cells[cell] = piece.name
        return "".join(cells)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {piece.name: number for number, piece in enumerate(self.pieces)}

    @cached_property
    def _masks(self) -> Sequence[Sequence[int]]:
        """For each piece and each of its places, the cells that it takes up."""
        return [
            [_cells(piece, place, self.size) for place in range(self.size - piece.length + 1)] for piece in self.pieces
        ]

    def _taken(self, state: State) -> list[int]:
        return [masks[place] for masks, place in zip(self._masks, state, strict=True)]

    def _occupied(self, state: State) -> int:
        occupied = self.walls
        for mask in self._taken(state):
            occupied |= mask
        return occupied

    def _reached(self, state: State, number: int, step: int, occupied: int) -> Iterator[State]:
        """The states in which one piece has slid by 1, 2, … cells, as far as it can."""
        masks, place = self._masks[number], state[number]
        others = occupied ^ masks[place]
        place += step
        while 0 <= place < len(masks) and not masks[place] & others:
            yield (*state[:number], place, *state[number + 1 :])
            place += step


def _cells(piece: Piece, place: int, size: int) -> int:
    first, stride = (piece.line * size + place, 1) if piece.is_horizontal else (place * size + piece.line, size)
    return sum(1 << (first + stride * number) for number in range(piece.length))


def parse_board(text: str) -> Board:
    """Read a board; white space between its rows is ignored.

    Raises:
        DataError: it is not square, contains other characters, or a piece is not straight, or A is missing or vertical.
    """
    cells = "".join(text.split())
    if not _CELLS.fullmatch(cells):
        raise DataError("the board must consist of o or . (empty), x (a wall) and A to Z (pieces)")
    size = round(len(cells) ** 0.5)
    if size**2 != len(cells) or not SMALLEST <= size <= LARGEST:
        raise DataError(f"the board must have {SMALLEST}² to {LARGEST}² cells, not {len(cells)}")
    names = sorted(set(cells) - set("ox."))
    found = [_piece(name, cells, size) for name in names]
    if TARGET not in names or not found[0][0].is_horizontal:
        raise DataError("the board needs a horizontal piece A, which is to reach the last column")
    walls = sum(1 << cell for cell, sign in enumerate(cells) if sign == "x")
    return Board(size, tuple(piece for piece, _ in found), walls, tuple(place for _, place in found))


def _piece(name: str, cells: str, size: int) -> tuple[Piece, int]:
    where = [divmod(cell, size) for cell, sign in enumerate(cells) if sign == name]
    rows, columns = sorted({row for row, _ in where}), sorted({column for _, column in where})
    is_horizontal = len(rows) == 1
    line, along = (rows[0], columns) if is_horizontal else (columns[0], rows)
    if len(where) < 2 or (len(rows) > 1 and len(columns) > 1) or along[-1] - along[0] != len(along) - 1:
        raise DataError(f"piece {name} of the board is not a straight line of two or more cells")
    return Piece(name, is_horizontal, line, len(along)), along[0]


def distances(board: Board, most_states: int) -> dict[State, int] | None:
    """For each state that can be reached from the start, how many moves it is from a solution; empty if none is.

    A move can be taken back, so these are distances in an undirected graph: one search outwards from all solved states
    at once finds them all. None if there are more than `most_states` states.
    """
    nearby: dict[State, list[State]] = {board.start: []}
    queue = deque(nearby)
    while queue:
        here = queue.popleft()
        nearby[here] = list(board.neighbours(here))
        new = [state for state in nearby[here] if state not in nearby]
        nearby.update((state, []) for state in new)
        queue.extend(new)
        if len(nearby) > most_states:
            return None
    found = {state: 0 for state in nearby if board.is_solved(state)}
    queue.extend(found)
    while queue:
        here = queue.popleft()
        for state in nearby[here]:
            if state not in found:
                found[state] = found[here] + 1
                queue.append(state)
    return found


def fewest_moves(board: Board, most_states: int) -> int | None:
    """Length of a shortest solution, by a breadth-first search from the start.

    Returns None if there is no solution.

    Raises:
        DataError: none was found among the first `most_states` states.
    """
    found = {board.start: 0}
    queue = deque([board.start])
    while queue:
        here = queue.popleft()
        if board.is_solved(here):
            return found[here]
        for state in board.neighbours(here):
            if state not in found:
                found[state] = found[here] + 1
                queue.append(state)
        if len(found) > most_states:
            raise DataError(f"no solution was found within {most_states:,} positions")
    return None


def solution(board: Board, state: State, distance: Mapping[State, int]) -> list[Move]:
    """A shortest solution from a state, the first in the order of `neighbours`; `distance` as `distances` gives it."""
    moves: list[Move] = []
    while distance[state]:
        nearer = next(each for each in board.neighbours(state) if distance[each] < distance[state])
        moves.append(board.move_between(state, nearer))
        state = nearer
    return moves
