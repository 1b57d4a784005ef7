"""The page to look at in a browser, and the data that it fetches."""

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from sqlalchemy import Engine

from posttrain.dataserver.journal.reader import JournalReader
from posttrain.dataserver.journal.rows import StoredRow
from posttrain.dataserver.refusals import Refusal
from posttrain.dataserver.schemas import Split, Status
from posttrain.dataserver.web import dashboard_data

if TYPE_CHECKING:
    from posttrain.dataserver.server import DataServer

# What the page says of itself: its own script runs, and talks to nobody but this server.
_POLICY = re.compile('http-equiv="Content-Security-Policy" content="([^"]+)"')

# Row numbers and iterations are kept in 64 bits.
_LARGEST = 2**62


class CompletionsQuery(BaseModel):
    """Which rows of the table are meant."""

    run: str | None = None
    dataset: str | None = None
    split: Split | None = None
    status: Status | None = None
    iteration: str | None = Field(default=None, pattern=dashboard_data.ITERATIONS_PATTERN)
    limit: int = Field(default=50, ge=1, le=200)
    before: int | None = Field(default=None, ge=0, le=_LARGEST)


# Not part of the protocol: what the page fetches may change with the page.
router = APIRouter(include_in_schema=False)


@router.get("/ui")
def page() -> Response:
    """The page."""
    html = files("posttrain.dataserver.web").joinpath("page.html").read_text(encoding="utf-8")
    found = _POLICY.search(html)
    assert found is not None
    # Only here can it be said that no other page may show this one.
    policy = f"{found[1]}; frame-ancestors 'none'"
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


# These are no coroutines: the database is asked in a thread, beside the requests of trainers.


@router.get("/ui/data")
def dashboard(
    request: Request, run: str | None = None, since: Annotated[int, Query(ge=0, le=_LARGEST)] = 0
) -> dashboard_data.Dashboard:
    """Charts and counters of a run."""
    server: DataServer = request.app.state.server
    stats = server.journal.stats() if server.journal is not None else None
    return dashboard_data.dashboard(_database(request), stats, run, since)


@router.get("/ui/completions")
def completions(request: Request, asked: Annotated[CompletionsQuery, Query()]) -> dashboard_data.CompletionsPage:
    """A page of the table of completions."""
    chosen = dashboard_data.row_filter(asked.run, asked.dataset, asked.split, asked.status, asked.iteration)
    return dashboard_data.completions(_database(request), chosen, asked.limit, asked.before)


@router.get("/ui/completions/{row_id}")
def completion(request: Request, row_id: int) -> StoredRow:
    """One completion with its prompt, gold and scores."""
    row = JournalReader(_database(request)).row(row_id) if 0 <= row_id < 2**63 else None
    if row is None:
        raise Refusal("not_found", f"the journal has no row {row_id}")
    return row


def _database(request: Request) -> Engine:
    server: DataServer = request.app.state.server
    if server.database is None:
        raise Refusal("not_found", "there is nothing to show: the journal is off (journal.enabled: false)")
    return server.database
