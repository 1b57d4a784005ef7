"""Tests use one thread: for matrices this small, a second one costs more time than it saves."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For all tests here."""
