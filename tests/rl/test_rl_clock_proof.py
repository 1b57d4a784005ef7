"""The clock against GRPOTrainer itself: in each call of the reward function every row belongs to the current step."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ConfigError
from posttrain.rl.clock import Clock
from running import BIN

SCRIPT = Path(__file__).with_name("clock_process.py")


@dataclass(frozen=True)
class Case:
    """A training of W processes, in short letters; `resumed` ends it at an aligned step and goes on from there."""

    P: int
    G: int
    GA: int
    SPG: int
    mu: int
    W: int
    evaluated: bool
    resumed: bool

    @property
    def name(self) -> str:
        return "-".join(f"{key}{value:d}" for key, value in asdict(self).items())

    @property
    def letters(self) -> dict[str, int]:
        return {
            "micro_batch_size": self.P,
            "generations": self.G,
            "accumulation_steps": self.GA,
            "steps_per_generation": self.SPG,
            "iterations": self.mu,
        }

    @property
    def clock(self) -> Clock:
        return Clock(**self.letters, processes=self.W)

    @property
    def stride(self) -> int:
        return max(1, self.SPG * self.mu // self.GA)

    @property
    def max_steps(self) -> int:
        """Three generations or more, the last of which is not trained to its end where it could be."""
        return max(4, 2 * self.stride + 1)

    @property
    def fits(self) -> bool:
        served = self.SPG * self.mu
        return self.P * self.W * self.SPG % self.G == 0 and (served % self.GA == 0 or self.GA % served == 0)

    def order(self, **changes: Any) -> dict[str, Any]:
        """What clock_process.py is told."""
        return {
            "name": self.name,
            "letters": self.letters,
            "clock": True,
            "rows": self.clock.rows_needed(self.max_steps) if self.fits else 100,
            "max_steps": self.max_steps,
            "evaluate": self.evaluated,
            "resume_at": max(2, self.stride) if self.resumed else None,
            **changes,
        }


WORKED = {
    Case(4, 2, 2, 2, 1, 1, True, True): [0, 1, 2, 3],
    Case(4, 2, 2, 1, 1, 1, True, True): [0, 0, 1, 1, 2, 2, 3, 3],
    Case(4, 2, 2, 4, 1, 1, True, True): [0, 2, 4],
    Case(4, 2, 2, 2, 2, 1, True, True): [0, 2, 4],
    Case(4, 2, 2, 2, 1, 2, True, True): [0, 1, 2, 3],
    Case(2, 4, 1, 1, 1, 2, True, True): [0, 1, 2, 3],
    Case(3, 2, 2, 2, 1, 1, True, True): [0, 1, 2, 3],
}
"""The table in posttrain.rl.clock, and the steps in which TRL generates."""

LEVELS = ((1, 2, 3, 4), (2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3), (1, 2), (True, False), (True, False))
POSSIBLE = [case for case in (Case(*values) for values in product(*LEVELS)) if case.fits]


def pairs(case: Case) -> set[Any]:
    """Every two settings of a case."""
    return set(combinations(asdict(case).items(), 2))


def pairwise_cases() -> list[Case]:
    """Cases in which every two settings that go together do: again and again the case that has most new pairs."""
    pairs_of = {case: pairs(case) for case in POSSIBLE}
    missing, chosen = set[Any]().union(*pairs_of.values()), []
    while missing:
        chosen.append(max(POSSIBLE, key=lambda case: len(pairs_of[case] & missing)))
        missing -= pairs_of[chosen[-1]]
    return chosen


CASES = list(dict.fromkeys([*WORKED, *pairwise_cases()]))

LATE_RESUME = Case(4, 2, 2, 4, 1, 1, False, False)
UNEVEN = Case(4, 2, 3, 2, 1, 1, False, False)
TOO_SHORT = Case(4, 2, 2, 2, 1, 1, False, False)
WRONG = [
    LATE_RESUME.order(name="late resume", rows=24, max_steps=6, resume_at=3),
    UNEVEN.order(name="uneven", clock=False),
    TOO_SHORT.order(name="too short", rows=12),
]

Calls = Mapping[str, list[list[dict[str, Any]]]]
"""By name of the case, and rank: the calls of the reward function."""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """Train all cases; one launch per number of processes, since to start Python takes longest."""
    folder = tmp_path_factory.mktemp("clock")
    alone = [case.order() for case in CASES if case.W == 1] + WRONG
    launch(1, alone, folder)
    together = [case.order() for case in CASES if case.W == 2]
    launch(2, together, folder)
    return {
        order["name"]: [json.loads((folder / f"{order['name']}.{rank}.json").read_text()) for rank in range(processes)]
        for processes, orders in ((1, alone), (2, together))
        for order in orders
    }


def launch(processes: int, orders: list[dict[str, Any]], folder: Path) -> None:
    cases = folder / f"cases{processes}.json"
    cases.write_text(json.dumps(orders))
    launcher = (
        [BIN / "torchrun", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else [sys.executable]
    )
    finished = subprocess.run(
        [*launcher, SCRIPT, cases, folder],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    assert finished.returncode == 0, finished.stderr


def of_split(calls: Iterable[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    return [call for call in calls if set(call["split"]) == {split}]


def trained(calls: Iterable[dict[str, Any]], key: str) -> list[Any]:
    """What each call in training had under `key`."""
    return [call[key] for call in of_split(calls, "train")]


each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
def test_every_row_is_graded_in_the_step_that_the_clock_says(case: Case, calls: Calls) -> None:
    for rank in calls[case.name]:
        for call in of_split(rank, "train"):
            assert set(call["iteration"]) == {call["step"]}


@each_case
def test_the_ranks_get_the_rows_in_their_order_and_each_as_often_as_it_is_answered(case: Case, calls: Calls) -> None:
    ranks = [trained(rank, "row") for rank in calls[case.name]]
    assert {len(rows) for rank in ranks for rows in rank} == {case.P * case.SPG}
    # Generation by generation, and in it rank 0 first.
    seen = list(chain.from_iterable(chain.from_iterable(zip(*ranks, strict=True))))
    assert seen == [row for row in range(case.clock.rows_needed(case.max_steps)) for _ in range(case.G)]


@each_case
def test_every_iteration_asks_for_all_its_slots(case: Case, calls: Calls) -> None:
    slots: dict[int, set[int]] = {}
    for rank in calls[case.name]:
        for call in of_split(rank, "train"):
            slots.setdefault(call["step"], set()).update(call["slot"])
    assert sorted(slots) == list(range(0, case.max_steps, case.clock.iteration_stride))
    assert {frozenset(asked) for asked in slots.values()} == {frozenset(range(case.clock.prompts_per_iteration))}


@each_case
def test_there_was_an_evaluation_after_every_step_or_none_at_all(case: Case, calls: Calls) -> None:
    for rank in calls[case.name]:
        steps = {call["step"] for call in of_split(rank, "eval")}
        assert steps == (set(range(1, case.max_steps + 1)) if case.evaluated else set())


@pytest.mark.parametrize(("case", "steps"), WORKED.items(), ids=[case.name for case in WORKED])
def test_the_worked_numbers_are_trls_own(case: Case, steps: list[int], calls: Calls) -> None:
    for rank in calls[case.name]:
        assert trained(rank, "step") == steps


def test_a_rank_has_its_half_of_the_prompts_or_of_a_group(calls: Calls) -> None:
    halves = calls[Case(4, 2, 2, 2, 1, 2, True, True).name]
    assert [trained(rank, "row")[0] for rank in halves] == [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7]]
    group = calls[Case(2, 4, 1, 1, 1, 2, True, True).name]
    assert [trained(rank, "row")[:2] for rank in group] == [[[0, 0], [1, 1]], [[0, 0], [1, 1]]]


def test_the_cases_are_few_and_have_every_pair_of_settings_that_goes_together() -> None:
    assert len(CASES) <= 40
    together, possible = (set[Any]().union(*map(pairs, cases)) for cases in (CASES, POSSIBLE))
    assert together == possible
    apart = {pair for values in product(*LEVELS) for pair in pairs(Case(*values))} - possible
    # 3·μ micro-batches neither divide 4 nor are a multiple of it while μ < 4.
    assert apart == {(("GA", 4), ("SPG", 3))}


def test_a_resume_inside_a_generation_trains_it_again_and_stays_late_which_is_why_it_is_refused(calls: Calls) -> None:
    (alone,) = calls["late resume"]
    assert trained(alone, "step") == [0, 2, 3, 5]
    assert [rows[0] for rows in trained(alone, "iteration")] == [0, 2, 2, 4]
    with pytest.raises(ConfigError, match="middle of a generation"):
        LATE_RESUME.clock.require_resumable(3)


def test_generations_that_do_not_fit_into_steps_give_them_uneven_prompts_which_is_why_they_are_refused(
    calls: Calls,
) -> None:
    (alone,) = calls["uneven"]
    assert trained(alone, "step") == [0, 0, 1, 2, 2, 3]
    with pytest.raises(ConfigError, match="differ in their number of prompts"):
        _ = UNEVEN.clock


def test_with_a_generation_less_than_needed_the_curriculum_begins_again(calls: Calls) -> None:
    (alone,) = calls["too short"]
    assert TOO_SHORT.clock.rows_needed(4) == 16
    assert trained(alone, "step") == [0, 1, 2, 3]
    assert [rows[0] for rows in trained(alone, "iteration")] == [0, 1, 2, 0]
