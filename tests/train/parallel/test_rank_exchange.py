"""Processes that exchange beside training fail together, and never take one exchange for another."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ConfigError, RunError, ServerError
from posttrain.train.parallel.ranks import RankExchange
from ranks.connected_ranks import on_ranks


def tried(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind and the text of its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)


def answers_of(exchange: RankExchange) -> Any:
    """This rank fails in the second exchange if it is rank 1."""
    is_second = os.environ["RANK"] == "1"

    def fail() -> str:
        if is_second:
            raise ConfigError("there is no such place")
        return "made"

    def stumble() -> str:
        raise KeyError("unforeseen") if is_second else ServerError("away")

    first = exchange.everywhere("a", lambda: os.environ["RANK"])
    return [first, *(tried(lambda make=make: exchange.everywhere("b", make)) for make in (fail, stumble, lambda: 1))]


def exchange_all() -> Any:
    return answers_of(RankExchange())


def test_an_error_of_any_kind_is_that_of_all_and_later_exchanges_go_on(tmp_path: Path) -> None:
    assert on_ranks(exchange_all, tmp_path) == [
        [
            ["0", "1"],
            (ServerError, "process 1: there is no such place"),
            (ServerError, "away"),
            [1, 1],
        ],
        [
            ["0", "1"],
            (ConfigError, "there is no such place"),
            (KeyError, "'unforeseen'"),
            [1, 1],
        ],
    ]


def skip_one() -> list[Any]:
    """Rank 1 leaves out generation 3."""
    exchange, rank = RankExchange(), int(os.environ["RANK"])
    generations = [3, 4, 5][rank:]
    return [tried(lambda each=each: exchange.agreed(f"generation {each}", lambda: each)) for each in generations]


def test_what_belongs_to_another_exchange_is_never_returned_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    one, other = on_ranks(skip_one, tmp_path)
    assert [kind for kind, _ in one + other] == [RunError] * 5
    assert "generation 3 and generation 4" in one[0][1]


def fail_within() -> Any:
    """Rank 1 fails before an exchange within another one."""
    exchange = RankExchange()

    def make() -> list[int]:
        if os.environ["RANK"] == "1":
            raise ServerError("no memory")
        return exchange.everywhere("inner", lambda: 1)

    return [tried(lambda: exchange.everywhere("outer", make)), tried(lambda: exchange.everywhere("next", lambda: 2))]


def test_the_reason_of_a_rank_that_misses_an_inner_exchange_is_told(tmp_path: Path) -> None:
    one, other = on_ranks(fail_within, tmp_path)
    assert (one[0], other[0]) == ((ServerError, "process 1: no memory"), (ServerError, "no memory"))
    assert (one[1][0], other[1][0]) == (RunError, RunError)


def test_a_single_process_gets_its_own_error(tmp_path: Path) -> None:
    def fail() -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        RankExchange().gathered("a", lambda: [fail()])
    assert RankExchange().gathered("a", lambda: [1, 2]) == [1, 2]
