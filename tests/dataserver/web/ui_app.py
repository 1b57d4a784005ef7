"""A server with only the dashboard."""

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import uvicorn
from fastapi import FastAPI, Request, Response
from sqlalchemy import Engine

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.records import JournalRow
from posttrain.dataserver.journal.steps import StepStore
from posttrain.dataserver.journal.writer import JournalStats, JournalWriter
from posttrain.dataserver.step_reports import StepReport
from posttrain.dataserver.web import dashboard
from posttrain.dataserver.web.refusals import refusal_response
from posttrain.web.refusal import Refusal


@dataclass
class Dashboard:
    """A served dashboard."""

    engine: Engine
    address: str = ""
    broken: list[bool] = field(default_factory=list)

    def report(self, *reports: StepReport) -> None:
        """Add reports of steps to the journal."""
        for each in reports:
            StepStore(self.engine).put(each)

    def keep(self, *rows: JournalRow) -> None:
        """Add rows to the journal."""
        writer = JournalWriter(self.engine, JournalConfig())
        writer.add_durable(rows)
        writer.close()


def make_app(engine: Engine, stats: JournalStats, broken: list[bool]) -> FastAPI:
    """The dashboard's routes; while `broken` is not empty, the summary answers 503."""
    app = FastAPI()
    app.state.server = SimpleNamespace(database=engine, journal=SimpleNamespace(stats=lambda: stats))
    app.include_router(dashboard.router)
    app.add_exception_handler(Refusal, lambda request, refusal: refusal_response(refusal))

    @app.middleware("http")
    async def fail_if_broken(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        return Response(status_code=503) if broken and request.url.path == "/ui/data" else await answer(request)

    return app


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve the app on a free port and yield its address."""
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
