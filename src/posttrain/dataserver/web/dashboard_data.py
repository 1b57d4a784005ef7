"""What the dashboard shows, as plain data that goes out as JSON. It is read by the script in page.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil

from sqlalchemy import Engine

from posttrain.dataserver.journal.reader import JournalReader, RowExcerpt, RowFilter
from posttrain.dataserver.journal.summaries import GroupCell, JournalSummaries, RewardCell, RunSummary, ScoreCell
from posttrain.dataserver.journal.writer import JournalStats
from posttrain.dataserver.schemas import Split, Status

ITERATIONS_PATTERN = r"^[0-9]{1,15}(-[0-9]{1,15})?$"
"""How iterations are written in a request: `12`, or `10-20` with both ends."""

_MOST_POINTS = 240
_RECENT_ITERATIONS = 10
_ROWS_FOR_LATENCY = 2000


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a grader takes: nearest-rank percentiles, in milliseconds."""

    grader: str
    count: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class JournalState:
    """The counters of the journal's writer since the server started."""

    written: int
    dropped: int
    queued: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Everything but the table of completions. Without `run` there is no row yet, and all lists are empty."""

    runs: list[RunSummary]
    run: str | None
    iteration: int | None
    """Of the newest row; so are the next two."""
    stage: str | None
    updated_at: datetime | None
    width: int
    """So many iterations are taken together in one cell."""
    since: int
    """The cells are those from this iteration on."""
    rewards: list[RewardCell]
    scores: list[ScoreCell]
    groups: list[GroupCell]
    recent: list[RewardCell]
    """Of the last iterations, each by itself."""
    latencies: list[Latency]
    journal: JournalState | None


@dataclass(frozen=True, slots=True)
class CompletionsPage:
    """A page of the table, newest first."""

    completions: list[RowExcerpt]
    before: int | None
    """What to ask for the next page with; None on the last one."""


def dashboard(engine: Engine, stats: JournalStats | None, run: str | None, since: int = 0) -> Dashboard:
    """Sum up one run: the one that is named, or the one with the newest row.

    Args:
        since: leave out the cells before this iteration; a page that has them already saves the work.

    Raises:
        ServerError: the database does not answer.
    """
    summaries = JournalSummaries(engine)
    journal = None if stats is None else JournalState(*stats)
    runs = summaries.runs()
    summary = next((each for each in runs if run is None or each.run_id == run), None)
    newest = None if summary is None else JournalReader(engine).row(summary.last_id)
    if summary is None or newest is None:
        return Dashboard(runs, None, None, None, None, 1, 0, [], [], [], [], [], journal)
    width = cell_width(summary.last_iteration)
    since = min(max(0, since), summary.last_iteration) // width * width
    recent = summaries.rewards(summary.run_id, newest.iteration - _RECENT_ITERATIONS + 1)
    return Dashboard(
        runs=runs,
        run=summary.run_id,
        iteration=newest.iteration,
        stage=newest.stage,
        updated_at=newest.created_at,
        width=width,
        since=since,
        rewards=summaries.rewards(summary.run_id, since, width),
        scores=summaries.scores(summary.run_id, since, width),
        groups=summaries.groups(summary.run_id, since, width),
        recent=[cell for cell in recent if cell.iteration <= newest.iteration],
        latencies=latencies(summaries.grader_milliseconds(summary.run_id, _ROWS_FOR_LATENCY)),
        journal=journal,
    )


def completions(engine: Engine, chosen: RowFilter, limit: int, before: int | None = None) -> CompletionsPage:
    """The newest of the chosen rows; ServerError where the database does not answer."""
    page = JournalReader(engine).page(chosen, limit + 1, before)
    return CompletionsPage(page[:limit], page[limit - 1].id if len(page) > limit else None)


def row_filter(
    run: str | None, dataset: str | None, split: Split | None, status: Status | None, iteration: str | None
) -> RowFilter:
    """The rows that a request asks for; `iteration` as in ITERATIONS_PATTERN."""
    first, _, last = (iteration or "").partition("-")
    return RowFilter(
        run_id=run,
        dataset=dataset,
        split=split,
        status=status,
        first_iteration=int(first) if first else None,
        last_iteration=int(last or first) if first else None,
    )


def cell_width(last_iteration: int) -> int:
    """The smallest power of two by which all iterations fit into the points that a chart has room for."""
    return 1 << max(0, ceil((last_iteration + 1) / _MOST_POINTS) - 1).bit_length()


def latencies(milliseconds: Mapping[str, Sequence[float]]) -> list[Latency]:
    """The slowest grader first."""
    each = [
        Latency(grader, len(times), percentile(times, 50), percentile(times, 95))
        for grader, times in milliseconds.items()
    ]
    return sorted(each, key=lambda latency: (-latency.p95, latency.grader))


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that is not exceeded by `percent` of a hundred values."""
    return sorted(values)[ceil(len(values) * percent / 100) - 1]
