"""The packages of the extras are installed as pinned, fit the pins for CPU and for CUDA, and may be used.

`make test-extras` runs this in an environment that has them.
"""

import sys
from importlib.metadata import distributions, requires
from pathlib import Path

import pytest

from supply_chain.test_pinned_packages import EXTRAS, LICENCES, OWN, normal, pins, refused_by

pytestmark = pytest.mark.extras

(SITE,) = Path(sys.prefix).glob("lib/python*/site-packages")


def test_what_is_installed_for_the_extras_is_what_is_pinned() -> None:
    installed = {normal(each.metadata["Name"]): each.version for each in distributions(path=[str(SITE)])}
    assert {name: version for name, version in installed.items() if name not in OWN} == pins(EXTRAS)


@pytest.mark.parametrize("file", ["constraints-cpu.txt", "constraints-cuda.txt"])
def test_the_pins_leave_room_for_the_extras(file: str) -> None:
    pinned = {**pins(file), **pins(EXTRAS)}
    refused = {name: refused_by(pinned, requires(name) or ()) for name in pins(EXTRAS)}
    assert {name: wanted for name, wanted in refused.items() if wanted} == {}


def test_every_package_of_an_extra_may_be_used_under_its_licence_and_is_on_the_page() -> None:
    found = LICENCES.licences(EXTRAS)
    assert {name: licence for name, licence in found.items() if not LICENCES.is_allowed(name, licence)} == {}
    (page,) = LICENCES.rendered().items()
    assert page[0].read_text(encoding="utf-8") == page[1], f"out of date: {sys.executable} docs/licences.py"
