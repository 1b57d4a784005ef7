import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dataserver.graders.puzzles.boards import board_texts
from dataserver.graders.puzzles.test_sliding_blocks import HARDEST
from posttrain.dataserver.graders.puzzles.sliding_blocks import Move, distances, parse_board, solution
from posttrain.dataserver.graders.rush_hour import RushHour
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags
from posttrain.errors import DataError

EXACT, SHAPED = RushHour(), RushHour(format="shaped")
BOTH = pytest.mark.parametrize("grader", [EXACT, SHAPED], ids=["exact", "shaped"])
# B must leave upwards or downwards before A can pass; C is in nobody's way.
BOARD = "ooooo ooBoo AABoo ooooo CCooo"


def item(text: str, board: str = BOARD, gold: object = None, tags: ReasoningTags | None = None, **row: object):
    return GradeInput(text, None, gold=gold, record={"board": board, **row}, tags=tags).split()


def score(grader: RushHour, text: str, board: str = BOARD, **given: object) -> float:
    return grader.score(item(text, board, **given)).value  # type: ignore[arg-type,union-attr]


def best_moves(text: str) -> list[Move]:
    """A shortest solution; leaves out boards without one and boards that are solved already."""
    board = parse_board(text)
    distance = distances(board, 100_000)
    assume(distance and distance.get(board.start))
    assert distance
    return solution(board, board.start, distance)


def written(moves: list[Move]) -> str:
    return ", ".join(map(str, moves))


@BOTH
@given(text=board_texts())
def test_the_solution_found_by_the_search_is_worth_everything(grader: RushHour, text: str):
    moves = best_moves(text)
    grader.check_row(item("", text))
    assert score(grader, written(moves), text) == 1.0
    assert score(grader, written(moves), text, moves=len(moves)) == 1.0


@given(
    text=board_texts(), moves=st.lists(st.builds(Move, st.sampled_from("ABCD"), st.sampled_from("<>^v"), st.just(1)))
)
def test_nothing_but_a_shortest_solution_is_worth_as_much(text: str, moves: list[Move]):
    best, answer = best_moves(text), written(moves)
    exact, shaped = score(EXACT, answer, text), score(SHAPED, answer, text)
    assert exact in (0.0, 1.0)
    assert (shaped == 1.0) == (exact == 1.0)
    assert exact == 1.0 or 0 <= shaped <= 0.25
    assert exact == 0.0 or len(moves) >= len(best)


@BOTH
@given(text=board_texts(), data=st.data())
def test_neither_other_names_nor_moves_in_parts_change_anything(grader: RushHour, text: str, data: st.DataObject):
    moves = best_moves(text)
    moves = moves[: data.draw(st.integers(1, len(moves)))]
    names = dict(zip("BCDEFGHIJ", data.draw(st.permutations("ZYXWVUTSR")), strict=True))
    in_parts = [move._replace(steps=1) for move in moves for _ in range(move.steps)]
    renamed = [move._replace(piece=names.get(move.piece, "A")) for move in moves]
    given = score(grader, written(moves), text)
    assert score(grader, written(in_parts), text) == given
    assert score(grader, written(renamed), text.translate(str.maketrans(names))) == given


@pytest.mark.parametrize(
    ("answer", "exact", "shaped"),
    [
        ("B^1, A>3", 1.0, 1.0),
        # One move more than needed: 0.20 / 2 + 0.10 + 0.05.
        ("C>1, B^1, A>3", 0.0, 0.25),
        # Three more: 0.20 / 4 + 0.10 + 0.05.
        ("C>1, C<1, C>1, B^1, A>3", 0.0, 0.20),
        # The third of three moves is not legal. A has 3 − 1 = 2 cells to go, without B: 2/3 of 0.10, and 2/4 of 0.05.
        ("B^1, A>1, C^1", 0.0, 0.10 * 2 / 3 + 0.05 * 2 / 4),
        # It was solved, but the list is not a solution: A cannot move on.
        ("B^1, A>3, A>1", 0.0, 0.10 / 2 + 0.05 / 4),
        ("B^1, A>3, A<1", 0.0, 0.10 + 0.05 * 3 / 4),
        # A moves that far back that it is no closer than at first.
        ("C>1, C<1", 0.0, 0.0),
        ("A>1", 0.0, 0.0),
    ],
)
def test_scores_worked_out_by_hand(answer: str, exact: float, shaped: float):
    assert score(EXACT, answer) == exact
    assert score(SHAPED, answer) == pytest.approx(shaped)


def test_with_gold_only_another_shortest_solution_is_any_solution():
    exact, shaped = RushHour(gold_only=True), RushHour(gold_only=True, format="shaped")
    assert (score(exact, "B^1, A>3", gold="B^1,A>2,A>1"), score(exact, "Bv2, A>3", gold="B^1, A>3")) == (1.0, 0.0)
    # 0.20 / 1 + 0.10 + 0.05
    assert score(shaped, "Bv2, A>3", gold="B^1, A>3") == pytest.approx(0.35)


# Honest but wrong: B is moved out of the way, and A not all of it.
HONEST = "B^1, A>2"
EVERY_MOVE = ", ".join(f"{piece}{sign}{steps}" for piece in "ABC" for sign in "<>^v" for steps in (1, 2, 3))
HACKS = {
    "nothing": "",
    "every move": EVERY_MOVE,
    "every move from the other end": ", ".join(reversed(EVERY_MOVE.split(", "))),
    "a legal shuffle": ", ".join(["C>1, C<1"] * 100),
    "a legal shuffle, then out of the way": ", ".join(["C>1, C<1"] * 100 + ["B^1"]),
    "a million moves": ", ".join(["C>1, C<1"] * 500_000),
    "two solutions": "B^1, A>3, Bv2, A>3",
    "a choice of solutions": "B^1, A>3 or Bv2, A>3",
    "Cyrillic letters": "В^1, А>3",
    "full-width letters": "Ｂ^1, Ａ>3",
    "other digits": "B^١, A>٣",
    "invisible signs": "B^1,\u200b A>3",
    "lower case": "b^1, a>3",
    "a piece that is not there": "D^1, A>3",
    "across its axis": "B>1, A>3",
    "no steps": "B^0, A>3",
    "through B": "A>3",
    "the board": BOARD,
}


@pytest.mark.parametrize("answer", HACKS.values(), ids=HACKS.keys())
def test_a_hack_earns_no_more_than_an_honest_wrong_answer(answer: str):
    assert score(EXACT, answer) == 0.0
    assert score(SHAPED, answer) <= score(SHAPED, HONEST) < 0.15


@BOTH
@pytest.mark.parametrize(
    "completion", ["<think>B^1, A>3</think>I do not know", "<think>B^1, A>3</think>", "<think>B^1, A>3", "B^1, A>3"]
)
def test_what_is_only_in_the_reasoning_earns_nothing(grader: RushHour, completion: str):
    assert score(grader, completion, tags=ReasoningTags()) == 0.0
    assert score(grader, "<think>no</think>B^1, A>3", tags=ReasoningTags()) == 1.0


@pytest.mark.parametrize(
    ("row", "gold", "reason"),
    [
        ({}, None, "'board' must contain a board"),
        ({"board": 5}, None, "'board' must contain a board"),
        ({"board": "AAo ooo"}, None, "cells, not 6"),
        ({"board": "ooo oAA ooo"}, None, "solved before the first move"),
        ({"board": "ooo AAx ooo"}, None, "cannot be solved"),
        ({"board": BOARD, "moves": 0}, None, "number of moves, not 0"),
        ({"board": BOARD, "moves": True}, None, "number of moves, not True"),
        ({"board": BOARD, "moves": "few"}, None, "number of moves, not 'few'"),
        ({"board": BOARD}, 5, "gold must be a list of moves"),
        ({"board": BOARD}, "B^1, A>2", "do not solve"),
        ({"board": BOARD}, "A>3", "do not solve"),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused(row: dict[str, object], gold: object, reason: str):
    grader = RushHour(gold_only=gold is not None)
    with pytest.raises(DataError, match=reason):
        grader.check_row(GradeInput("", None, gold=gold, record=row))


def test_a_row_needs_the_column_with_the_moves_only_if_the_search_is_too_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("posttrain.dataserver.graders.rush_hour._MOST_POSITIONS", 1000)
    with pytest.raises(DataError, match=r"1,000 positions; name a column .* in moves_column"):
        EXACT.check_row(item("", HARDEST))
    EXACT.check_row(item("", HARDEST, moves=51))
    EXACT.check_row(item("", HARDEST, moves="51"))
