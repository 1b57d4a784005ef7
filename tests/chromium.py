"""Chromium for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

# Chromium has no sandbox as root, and must not contact Google's servers.
_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Chromium, closed at the end of the block: no other event loop can run while it is open."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("there is no browser (chromium); apt-get install -y --no-install-recommends chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS.split())
        yield browser
        browser.close()
