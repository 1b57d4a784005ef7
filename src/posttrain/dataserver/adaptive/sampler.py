"""Serve sampling plans: each is made at the first request for its iteration and kept in the journal."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from cachetools import LRUCache
from pydantic import TypeAdapter, ValidationError

from posttrain.dataserver.adaptive.planner import PlannedRow, Planner
from posttrain.dataserver.config.adaptive import AdaptiveConfig
from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.data.substitutes import substituted
from posttrain.dataserver.journal.plans import Plan, PlanStore
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import ServerError

# About 15 MB.
_REMEMBERED_SLOTS = 2**17
_ROWS = TypeAdapter(list[PlannedRow])
_SUBSTITUTES = TypeAdapter(list[list[int]])


class _Planned(NamedTuple):
    slots: list[Slot]
    substitutes: list[list[int]]
    """Row numbers, of shape [attempts, slots]."""


class AdaptiveSampler:
    """Decides which rows an iteration of a run asks; all replicas on one journal give the same answer.

    If replicas plan an iteration at the same time, with grades arriving in between, the first plan stored wins. Later
    grades never change a stored plan.
    """

    def __init__(self, loaded: Loaded, adaptive: AdaptiveConfig, store: PlanStore) -> None:
        self._sampler = loaded.sampler
        self._identity = loaded.meta.config_id
        self._slots = loaded.config.prompts_per_iteration
        self._attempts = loaded.config.substitutes
        self._planner = Planner(loaded, adaptive)
        self._store = store
        remembered = max(1, _REMEMBERED_SLOTS // (self._slots * (1 + self._attempts)))
        self._plans = LRUCache[tuple[str, int], _Planned](maxsize=remembered)
        self._under_way: dict[tuple[str, int], asyncio.Task[_Planned]] = {}

    async def slots(self, run_id: str, iteration: int, offset: int, batch_size: int) -> list[Slot]:
        """The rows in slots offset … offset + batch_size − 1 of a training iteration.

        Raises:
            ConfigError: the slots do not exist, or nothing is drawn at that iteration.
            ServerError: the journal cannot be queried, or its plan is damaged.
        """
        self._sampler.require_slots(iteration, offset, batch_size, "train")
        return (await self._plan(run_id, iteration)).slots[offset : offset + batch_size]

    async def substitutes(self, run_id: str, iteration: int, slots: Sequence[int], attempt: int) -> list[Slot]:
        """The rows of substitutes number `attempt`, counted from 1, for some slots; raises as `slots` does."""
        self._sampler.require_training_slots(iteration, slots)
        planned = await self._plan(run_id, iteration)
        return substituted(planned.slots, planned.substitutes, slots, attempt)

    async def _plan(self, run_id: str, iteration: int) -> _Planned:
        """Recall, fetch or make a plan, once for all requests waiting for it."""
        key = run_id, iteration
        if (planned := self._plans.get(key)) is not None:
            return planned
        if key not in self._under_way:
            making = asyncio.create_task(asyncio.to_thread(self._stored_plan, run_id, iteration))
            self._under_way[key] = making
            making.add_done_callback(lambda done: self._finished(key, done))
        # A client that disconnects must not cancel the plan for the others.
        return await asyncio.shield(self._under_way[key])

    def _finished(self, key: tuple[str, int], done: asyncio.Task[_Planned]) -> None:
        del self._under_way[key]
        if not done.cancelled() and done.exception() is None:
            self._plans[key] = done.result()

    def _stored_plan(self, run_id: str, iteration: int) -> _Planned:
        stored = self._store.plan(run_id, self._identity, iteration)
        if stored is None:
            statistics = {}
            if self._planner.looks_back(iteration):
                last = self._planner.last_graded(iteration)
                statistics = self._store.statistics_until(run_id, self._identity, last)
            rows = self._planner.plan(iteration, statistics)
            substitutes = self._planner.substitutes(iteration, rows, statistics)
            plan: Plan = {"rows": [list(row) for row in rows], "substitutes": substitutes}
            stored = self._store.store_plan(run_id, self._identity, iteration, plan)
        return _planned(stored, self._slots, self._attempts)


def _planned(plan: Plan, slots: int, attempts: int) -> _Planned:
    """A plan from the journal; ServerError if it is not one for that many slots and substitutes of each."""
    try:
        rows = _ROWS.validate_python(plan.get("rows"), strict=False)
        substitutes = _SUBSTITUTES.validate_python(plan.get("substitutes"), strict=True)
    except ValidationError:
        rows, substitutes = [], []
    if len(rows) != slots or [len(each) for each in substitutes] != [slots] * attempts:
        raise ServerError(
            f"journal: a plan is damaged: it does not have the {slots} rows of an iteration and {attempts} substitutes "
            "of each"
        )
    return _Planned([Slot(slot, row.dataset, row.number) for slot, row in enumerate(rows)], substitutes)
