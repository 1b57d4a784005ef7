"""Boards and moves of Rush Hour, against a simulation that moves letters about a grid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataserver.graders.puzzles.boards import SIZE, board_texts
from posttrain.dataserver.graders.puzzles.sliding_blocks import (
    Move,
    distances,
    fewest_moves,
    parse_board,
    parse_moves,
    solution,
)
from posttrain.errors import DataError

HARDEST = "GBBoLo GHIoLM GHIAAM CCCKoM ooJKDD EEJFFo"
"""By Michael Fogleman's enumeration of all boards of 6 × 6 cells: 51 moves, 4780 positions."""
STEPS = {"<": (0, -1), ">": (0, 1), "^": (-1, 0), "v": (1, 0)}


def letters_slid(text: str, move: Move) -> str | None:
    """The board after a move, or None if it is not legal, cell by cell."""
    for _ in range(move.steps):
        cells = {divmod(place, SIZE): sign for place, sign in enumerate(text)}
        piece = [where for where, sign in cells.items() if sign == move.piece]
        along = {y for y, _ in piece} if move.direction in "<>" else {x for _, x in piece}
        if len(along) != 1:
            return None  # no such piece, or across its axis
        dy, dx = STEPS[move.direction]
        target = [(y + dy, x + dx) for y, x in piece]
        if any(cells.get(where) not in ("o", move.piece) for where in target):
            return None
        cells |= dict.fromkeys(piece, "o") | dict.fromkeys(target, move.piece)
        text = "".join(cells[divmod(place, SIZE)] for place in range(SIZE**2))
    return text


MOVES = st.builds(Move, st.sampled_from("ABCDE"), st.sampled_from("<>^v"), st.integers(1, 4))


@given(board_texts(), st.lists(MOVES, max_size=6))
def test_a_move_does_what_moving_the_letters_does(text: str, moves: list[Move]):
    board = parse_board(text)
    state = board.start
    for move in moves:
        after, letters = board.slid(state, move), letters_slid(board.text(state), move)
        assert (after is None) == (letters is None)
        if after is not None:
            assert board.text(after) == letters
            assert after in set(board.neighbours(state))
            assert board.move_between(state, after) == move
            state = after


@given(board_texts())
def test_a_board_is_read_back_from_its_text(text: str):
    board = parse_board(text)
    assert board.text(board.start) == text


@given(board_texts())
def test_both_searches_agree_and_the_solution_is_as_long_as_they_say(text: str):
    board = parse_board(text)
    distance = distances(board, 100_000)
    assert distance is not None
    assert fewest_moves(board, 100_000) == distance.get(board.start)
    if distance:
        moves = solution(board, board.start, distance)
        state = board.start
        for move in moves:
            after = board.slid(state, move)
            assert after is not None
            state = after
        assert board.is_solved(state)
        assert len(moves) == distance[board.start]
        assert parse_moves(", ".join(map(str, moves))) == moves


def test_the_hardest_board_takes_as_many_moves_as_is_known():
    board = parse_board(HARDEST)
    distance = distances(board, 10_000)
    assert distance is not None
    assert (fewest_moves(board, 10_000), distance[board.start], len(distance)) == (51, 51, 4780)


def test_a_search_that_is_too_long_is_told():
    board = parse_board(HARDEST)
    assert distances(board, 4779) is None
    with pytest.raises(DataError, match="100 positions"):
        fewest_moves(board, 100)


def test_a_wall_stays_where_it_is_and_stops_a_piece():
    board = parse_board("oxo AAo oBB")
    assert board.slid(board.start, Move("x", ">", 1)) is None
    assert fewest_moves(board, 100) == 1
    assert fewest_moves(parse_board("ooo AAx ooo"), 100) is None


def test_the_way_of_the_target_counts_cells_and_pieces():
    board = parse_board("ooBo AABC oooC oooo")
    # Two cells to go, with B and C in them.
    assert board.obstruction(board.start) == 4
    assert board.obstruction(board.slid(board.start, Move("B", "v", 2)) or ()) == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must consist of"),
        ("ooo AAo oo#", "must consist of"),
        ("ооо ААо ооо", "must consist of"),  # Cyrillic
        ("ooo AAo oo", "cells, not 8"),
        ("AA oo", "cells, not 4"),
        ("ooo BBo ooo", "horizontal piece A"),
        ("Aoo Aoo ooo", "horizontal piece A"),
        ("Boo AAo ooo", "piece B"),
        ("BoB AAo ooo", "piece B"),
        ("BBo BAA ooo", "piece B"),
    ],
)
def test_what_is_no_board_is_refused(text: str, reason: str):
    with pytest.raises(DataError, match=reason):
        parse_board(text)


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("B^1,A>3", "B^1 A>3"),
        (" B ^ 1 ,\nA > 3 ", "B^1 A>3"),
        ("BU1, AR3, AL2, CD1, CV2", "B^1 A>3 A<2 Cv3"),
        ("A>1, A>1, B^1, A>1", "A>2 B^1 A>1"),
        ("A>1, A<1", "A>1 A<1"),
        ("A>12", "A>12"),
    ],
)
def test_moves_are_read_and_merged(text: str, moves: str):
    assert " ".join(map(str, parse_moves(text) or [])) == moves


@pytest.mark.parametrize(
    "text", ["", ",", "A>1,", "A>0", "A>-1", "A>1.", "A>1; B^1", "A>1 B^1", "a>1", "A>", "A>123", "A→1", "A>１", "А>1"]
)
def test_anything_else_is_no_list_of_moves(text: str):
    assert parse_moves(text) is None
