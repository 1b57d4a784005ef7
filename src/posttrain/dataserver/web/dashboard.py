"""The dashboard page (page.html) and the JSON behind it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from math import ceil
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from sqlalchemy import Engine

from posttrain.dataserver.journal.reader import (
    GroupCell,
    JournalReader,
    JournalSummaries,
    RewardCell,
    RowExcerpt,
    RowFilter,
    RunSummary,
    ScoreCell,
)
from posttrain.dataserver.journal.records import StoredRow
from posttrain.dataserver.journal.steps import GroupRewardCell, GroupUse, NumberCell, StepSummaries, VerdictCell
from posttrain.dataserver.journal.writer import JournalStats
from posttrain.dataserver.schemas import Split, Status
from posttrain.dataserver.server import DataServer
from posttrain.report.page import shared_style
from posttrain.web.refusal import Refusal

# The policy in the page: only its own script runs, and it talks to no other server.
_POLICY = re.compile('http-equiv="Content-Security-Policy" content="([^"]+)"')

# Row numbers and iterations are stored in 64 bits.
_LARGEST = 2**62

_MOST_POINTS = 240
_RECENT_ITERATIONS = 10
_ROWS_FOR_LATENCY = 2000

# The trainer's numbers that the page draws, and those of its filters.
_NUMBERS = (
    "async/age_mean",
    "async/age_max",
    "sampling/effective_share",
    "rollouts/replayed_share",
    "seconds/wait",
    "seconds/engine_idle",
)
_FILTERS = "filters/"


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a grader takes: nearest-rank percentiles, in milliseconds."""

    grader: str
    count: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Everything but the table of completions. If `run` is None, nothing was found; only `runs` may have items."""

    runs: list[RunSummary]
    run: str | None
    iteration: int | None
    """Of the newest row, like the next two; of the newest step of a run that only reported steps."""
    stage: str | None
    updated_at: datetime | None
    width: int
    """Iterations per cell."""
    since: int
    """The first iteration of the cells below."""
    rewards: list[RewardCell]
    scores: list[ScoreCell]
    groups: list[GroupCell]
    recent: list[RewardCell]
    """Of the last iterations, one cell per iteration."""
    latencies: list[Latency]
    last_step: int | None
    """The newest optimizer step that the trainer reported; None if it reported none."""
    steps: list[GroupRewardCell]
    verdicts: list[VerdictCell]
    numbers: list[NumberCell]
    journal: dict[str, int | str | None] | None
    """The counters of the journal's writer since the server started, as `JournalStats`."""


@dataclass(frozen=True, slots=True)
class CompletionsPage:
    """A page of the table, newest first."""

    completions: list[RowExcerpt]
    before: int | None
    """The value of `before` that asks for the next page; None on the last one."""


@dataclass(frozen=True, slots=True)
class CompletionPage:
    """One completion with its prompt, gold and scores, and what optimizer steps did with its group."""

    row: StoredRow
    uses: list[GroupUse]


class CompletionsQuery(BaseModel):
    """Which rows of the table are meant."""

    run: str | None = None
    dataset: str | None = None
    split: Split | None = None
    status: Status | None = None
    iteration: str | None = Field(default=None, pattern=r"^[0-9]{1,15}(-[0-9]{1,15})?$")
    """`12`, or `10-20` with both ends."""
    limit: int = Field(default=50, ge=1, le=200)
    before: int | None = Field(default=None, ge=0, le=_LARGEST)

    def row_filter(self) -> RowFilter:
        """The filter for the journal's rows; `limit` and `before` then choose a page of them."""
        first, _, last = (self.iteration or "").partition("-")
        return RowFilter(
            run_id=self.run,
            dataset=self.dataset,
            split=self.split,
            status=self.status,
            first_iteration=int(first) if first else None,
            last_iteration=int(last or first) if first else None,
        )


# Not part of the protocol: what the page fetches may change with the page.
router = APIRouter(include_in_schema=False)


@router.get("/ui")
def get_page() -> Response:
    """Serve the page."""
    html = files("posttrain.dataserver.web").joinpath("page.html").read_text(encoding="utf-8")
    html = html.replace("<style>", f"<style>\n{shared_style()}", 1)
    found = _POLICY.search(html)
    assert found is not None
    # Only a header can forbid other pages to embed this one.
    policy = f"{found[1]}; frame-ancestors 'none'"
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


# These are not coroutines: they query the database in a thread, without blocking the requests of trainers.


@router.get("/ui/data")
def get_dashboard(
    request: Request, run: str | None = None, since: Annotated[int, Query(ge=0, le=_LARGEST)] = 0
) -> Dashboard:
    """Charts and counters of a run."""
    server: DataServer = request.app.state.server
    stats = server.journal.stats() if server.journal is not None else None
    return dashboard(_database(request), stats, run, since)


@router.get("/ui/completions")
def get_completions(request: Request, asked: Annotated[CompletionsQuery, Query()]) -> CompletionsPage:
    """A page of the table of completions."""
    return completions(_database(request), asked.row_filter(), asked.limit, asked.before)


@router.get("/ui/completions/{row_id}")
def get_completion(request: Request, row_id: int) -> CompletionPage:
    """One completion."""
    database = _database(request)
    row = JournalReader(database).row(row_id) if 0 <= row_id < 2**63 else None
    if row is None:
        raise Refusal("not_found", f"the journal has no row {row_id}")
    return CompletionPage(row, StepSummaries(database).uses_of(row))


def _database(request: Request) -> Engine:
    server: DataServer = request.app.state.server
    # Without a journal, only the reported steps are there, in memory.
    return server.steps.engine if server.database is None else server.database


def dashboard(engine: Engine, stats: JournalStats | None, run: str | None, since: int = 0) -> Dashboard:
    """Summarise one run: the named one, or else the one with the newest row.

    Args:
        since: leave out the cells before this iteration, which the page already has.

    Raises:
        ServerError: the database does not answer.
    """
    summaries, reported = JournalSummaries(engine), StepSummaries(engine)
    journal = None if stats is None else stats._asdict()
    steps = {each.run_id: each for each in reported.runs()}
    runs = summaries.runs()
    graded = {each.run_id for each in runs}
    runs += [RunSummary(each.run_id, 0, each.last_step, 0) for each in steps.values() if each.run_id not in graded]
    summary = next((each for each in runs if run is None or each.run_id == run), None)
    if summary is None:
        return Dashboard(runs, None, None, None, None, 1, 0, [], [], [], [], [], None, [], [], [], journal)
    run_id, last = summary.run_id, steps.get(summary.run_id)
    newest = JournalReader(engine).row(summary.last_id)
    iteration = summary.last_iteration if newest is None else newest.iteration
    last_iteration = max(summary.last_iteration, last.last_step if last else 0)
    width = cell_width(last_iteration)
    since = min(max(0, since), last_iteration) // width * width
    recent = summaries.rewards(run_id, iteration - _RECENT_ITERATIONS + 1)
    return Dashboard(
        runs=runs,
        run=run_id,
        iteration=iteration,
        stage=newest.stage if newest else None,
        updated_at=newest.created_at if newest else last.updated_at if last else None,
        width=width,
        since=since,
        rewards=summaries.rewards(run_id, since, width),
        scores=summaries.scores(run_id, since, width),
        groups=summaries.groups(run_id, since, width),
        recent=[cell for cell in recent if cell.iteration <= iteration],
        latencies=latencies(summaries.grader_milliseconds(run_id, _ROWS_FOR_LATENCY)),
        last_step=last.last_step if last else None,
        steps=reported.rewards(run_id, since, width),
        verdicts=reported.verdicts(run_id, since, width),
        numbers=reported.numbers(run_id, _NUMBERS, _FILTERS, since, width),
        journal=journal,
    )


def completions(engine: Engine, chosen: RowFilter, limit: int, before: int | None = None) -> CompletionsPage:
    """The newest of the chosen rows; ServerError if the database does not answer."""
    page = JournalReader(engine).page(chosen, limit + 1, before)
    return CompletionsPage(page[:limit], page[limit - 1].id if len(page) > limit else None)


def cell_width(last_iteration: int) -> int:
    """The smallest power of two as cell width with which all iterations fit into the points of a chart."""
    return 1 << max(0, ceil((last_iteration + 1) / _MOST_POINTS) - 1).bit_length()


def latencies(milliseconds: Mapping[str, Sequence[float]]) -> list[Latency]:
    """The latency of each grader, the slowest first (by p95)."""
    each = [
        Latency(grader, len(times), percentile(times, 50), percentile(times, 95))
        for grader, times in milliseconds.items()
    ]
    return sorted(each, key=lambda latency: (-latency.p95, latency.grader))


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile: the smallest value that at least `percent` % of the values do not exceed."""
    return sorted(values)[ceil(len(values) * percent / 100) - 1]
