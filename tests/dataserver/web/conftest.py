"""A server with only the dashboard and a journal that tests fill, and a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request
from sqlalchemy import Engine
from ui_app import Dashboard, make_app, serving

from chromium import open_browser
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.writer import JournalStats


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An empty journal."""
    engine = open_database(JournalConfig(path=tmp_path / "journal.sqlite"))
    yield engine
    engine.dispose()


@pytest.fixture
def dashboard(engine: Engine) -> Iterator[Dashboard]:
    """A dashboard on a free port, with an empty journal."""
    served = Dashboard(engine)
    with serving(make_app(engine, JournalStats(40, 2, 1, None), served.broken)) as served.address:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, closed after each test module: no other event loop can run while it is open."""
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, dashboard: Dashboard) -> Iterator[Page]:
    """A tab with a fake clock. The test fails if the page contacts another server or raises an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(10_000)
    page = context.new_page()
    asked: list[Request] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.clock.install()
    yield page
    # Requests that the page's own policy blocked were not sent.
    sent = [request.url for request in asked if request.failure != "csp"]
    context.close()
    assert sent and all(url.startswith((f"{dashboard.address}/ui", "data:,")) for url in sent), sent
    assert errors == []
