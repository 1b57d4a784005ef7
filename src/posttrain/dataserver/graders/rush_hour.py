"""Grader `rush_hour`: play the answer's moves on the board of the row."""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import Field

from posttrain.base.text import counted
from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.puzzles.sliding_blocks import (
    Board,
    Move,
    State,
    fewest_moves,
    parse_board,
    parse_moves,
)
from posttrain.dataserver.graders.text.completions import GradeInput, column_value
from posttrain.dataserver.graders.text.extraction import Extract, extract
from posttrain.errors import DataError

# The hardest board of 6 × 6 cells needs 51 moves.
_LONGEST_ANSWER = 4000
# About half a second of search.
_MOST_POSITIONS = 30_000

_ROW = {"board": "ooooo ooBoo AABoo ooooo ooooo"}
_SHAPED = {"format": "shaped"}


class RushHour(TextGrader):
    """1 if the answer solves the board in the smallest number of moves, else 0, or part of it if `format` is shaped.

    The board is square text, row by row: `o` or `.` is empty, `x` a wall, A to Z are pieces. It is solved when the
    right end of A, which is horizontal, is in the last column. The answer is a list such as `B^1, A>3`: a piece, a
    direction (`<`, `>`, `^`, `v`, or one of L, R, U, D, V), and how many cells it slides. Consecutive moves of a piece
    in one direction are merged and count once. The moves are played on the board; any other text scores 0.
    """

    type: Literal["rush_hour"] = "rush_hour"

    extract: Extract = "all"
    """The part of the answer that must be the list of moves and nothing else."""

    format: Literal["exact", "shaped"] = "exact"
    """exact: 1 for a shortest solution, else 0. shaped: 0.65 for a shortest solution + 0.20 / (1 + extra moves) for any
    solution + 0.10 × the share of moves before the first illegal one, if they bring A closer + 0.05 × how much closer:
    the relative fall of the number of cells and pieces between A and the last column."""

    board_column: str = Field(default="board", min_length=1)
    """The column that holds the board; `a.b` is key b of the object in column a."""

    moves_column: str = Field(default="moves", min_length=1)
    """The column that holds the smallest number of moves, which is not checked; for rows without it, it is found by a
    search."""

    gold_only: bool = False
    """Whether only the solution in the gold answer counts as shortest, instead of all equally short ones."""

    is_correctness: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("google-re2",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example("B^1, A>3", 1.0, record=_ROW),
        Example("BU1,AR3", 1.0, record=_ROW, note="letters for directions"),
        Example("Bv2, A>3", 1.0, record=_ROW, note="another shortest solution"),
        Example("B^1, A>2, A>1", 1.0, record=_ROW, note="counts as one move of A"),
        Example("B^1, A>3", 0.0, gold="Bv2, A>3", params={"gold_only": True}, record=_ROW),
        Example("A<1", 0.0, record={"board": "ooo AAo ooo"}, note="off the board"),
        Example("A>3", 0.0, record=_ROW, note="B is in the way"),
        Example("B^1", 0.0, record=_ROW, note="not solved"),
        Example("B^1, A>3, Bv1", 0.0, record=_ROW, note="one move too many"),
        Example("B^1, A>3", 0.0, record={**_ROW, "moves": 1}, note="the column decides"),
        Example("The moves are B^1, A>3", 0.0, record=_ROW, note="other text"),
        Example("Answer: B^1, A>3", 1.0, params={"extract": {"after": "Answer:"}}, record=_ROW),
        Example("B^1, A>3", 1.0, params=_SHAPED, record=_ROW),
        Example("B^1, A>3, Bv1", 0.25, params=_SHAPED, record=_ROW, note="0.20 / 2 + 0.10 + 0.05"),
        Example("B^1, A>2", 0.1375, params=_SHAPED, record=_ROW, note="0.10 + 0.05 × (4 − 1) / 4"),
        Example("B^1, A>4", 0.0625, params=_SHAPED, record=_ROW, note="0.10 / 2 + 0.05 × (4 − 3) / 4"),
        Example("Bv1, B^1, Bv1, B^1", 0.0, params=_SHAPED, record=_ROW, note="legal, but A is no closer"),
        Example("А>3", 0.0, params=_SHAPED, record=_ROW, note="a Cyrillic А is not A"),
        Example("", 0.0, params=_SHAPED, record=_ROW),
    )

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the row has a board to be solved and, with `gold_only`, a gold that solves it."""
        board = self._board(item)
        if board.is_solved(board.start):
            raise DataError("the board is solved before the first move")
        self._fewest(board, item)
        if self.gold_only:
            gold = self._gold(item)
            end, legal = _play(board, gold)
            if legal < len(gold) or not board.is_solved(end):
                raise DataError("the gold moves do not solve the board")

    def score_text(self, text: str, item: GradeInput) -> Score:
        """1 or 0, or by the formula of `shaped`."""
        listed = extract(text, self.extract)
        moves = parse_moves(listed) if listed is not None and len(listed) <= _LONGEST_ANSWER else None
        if moves is None:
            return Score(0.0, "not a list of moves such as B^1, A>3")
        board = self._board(item)
        end, legal = _play(board, moves)
        is_solved = legal == len(moves) and board.is_solved(end)
        extra = max(0, len(moves) - self._fewest(board, item)) if is_solved else 0
        is_best = moves == self._gold(item) if self.gold_only else is_solved and not extra
        detail = _detail(moves, legal, is_solved, extra)
        if self.format == "exact":
            return Score(float(is_best), detail)
        at_first = board.obstruction(board.start)
        closer = max(0.0, (at_first - board.obstruction(end)) / at_first)
        share = legal / len(moves) if closer else 0.0
        # In hundredths, because 0.65 + 0.20 + 0.10 + 0.05 is more than 1 in floating point.
        return Score((65 * is_best + 20 * is_solved / (1 + extra) + 10 * share + 5 * closer) / 100, detail)

    def _board(self, item: GradeInput) -> Board:
        text = column_value(item.record, self.board_column)
        if not isinstance(text, str):
            raise DataError(f"the column {self.board_column!r} must contain a board as text")
        return _parsed(text)

    def _fewest(self, board: Board, item: GradeInput) -> int:
        if self.gold_only:
            return len(self._gold(item))
        given = column_value(item.record, self.moves_column)
        if given is None:
            return _searched(board)
        if not str(given).isdecimal() or int(given) < 1:  # a table without types, such as CSV, has it as text
            raise DataError(f"the column {self.moves_column!r} must contain a number of moves, not {given!r}"[:200])
        return int(given)

    def _gold(self, item: GradeInput) -> list[Move]:
        moves = parse_moves(item.gold) if isinstance(item.gold, str) else None
        if moves is None:
            raise DataError(
                f"with gold_only the gold must be a list of moves such as B^1, A>3, not {item.gold!r}"[:200]
            )
        return moves


# The completions of a group share a board.
_parsed = lru_cache(maxsize=1024)(parse_board)


@lru_cache(maxsize=1024)
def _searched(board: Board) -> int:
    try:
        fewest = fewest_moves(board, _MOST_POSITIONS)
    except DataError as error:
        raise DataError(f"{error}; name a column with the smallest number of moves in moves_column") from None
    if fewest is None:
        raise DataError("the board cannot be solved")
    return fewest


def _play(board: Board, moves: Sequence[Move]) -> tuple[State, int]:
    """The state before the first illegal move, and how many moves led to it."""
    state = board.start
    for played, move in enumerate(moves):
        after = board.slid(state, move)
        if after is None:
            return state, played
        state = after
    return state, len(moves)


def _detail(moves: Sequence[Move], legal: int, is_solved: bool, extra: int) -> str:
    if legal < len(moves):
        return f"move {legal + 1}, {moves[legal]}, is not legal"
    if not is_solved:
        return f"not solved after {counted(len(moves), 'legal move')}"
    return f"solved in {counted(len(moves), 'move')}" + (f", {extra} more than needed" if extra else "")
