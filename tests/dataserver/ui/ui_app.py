"""A server that has nothing but the dashboard."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import Engine

from toolkit.dataserver.journal.config import JournalConfig
from toolkit.dataserver.journal.reader import JournalReader
from toolkit.dataserver.journal.rows import JournalRow, StoredRow
from toolkit.dataserver.journal.writer import JournalStats, JournalWriter
from toolkit.dataserver.schemas import Split, Status
from toolkit.dataserver.ui import data


@dataclass
class Dashboard:
    """A served dashboard."""

    engine: Engine
    address: str = ""
    broken: list[bool] = field(default_factory=list)

    def keep(self, *rows: JournalRow) -> None:
        """Have more rows in the journal."""
        writer = JournalWriter(self.engine, JournalConfig())
        writer.add_durable(rows)
        writer.close()


def make_app(engine: Engine, stats: JournalStats, broken: list[bool]) -> FastAPI:
    """The four routes of the dashboard; while `broken` holds anything, the data are answered with 503."""
    app = FastAPI()

    def fail_if_broken() -> None:
        if broken:
            raise HTTPException(503)

    @app.get("/ui")
    def page() -> Response:
        return HTMLResponse(files("toolkit.dataserver.ui").joinpath("page.html").read_text(encoding="utf-8"))

    @app.get("/ui/data", dependencies=[Depends(fail_if_broken)])
    def dashboard(run: str | None = None, since: int = 0) -> data.Dashboard:
        return data.dashboard(engine, stats, run, since)

    @app.get("/ui/completions")
    def completions(
        run: str | None = None,
        dataset: str | None = None,
        split: Split | None = None,
        status: Status | None = None,
        iteration: Annotated[str | None, Query(pattern=data.ITERATIONS_PATTERN)] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        before: int | None = None,
    ) -> data.CompletionsPage:
        return data.completions(engine, data.row_filter(run, dataset, split, status, iteration), limit, before)

    @app.get("/ui/completions/{row_id}")
    def completion(row_id: int) -> StoredRow:
        row = JournalReader(engine).row(row_id)
        if row is None:
            raise HTTPException(404)
        return row

    return app


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve the app on a free port; the value is its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
