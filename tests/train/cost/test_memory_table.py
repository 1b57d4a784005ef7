"""The tables of what fits into which device."""

import pytest
from memory_table import SIZES, estimated, stored, tables
from render import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_has_the_tables_of_the_stored_estimates():
    assert tables(stored()) in (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_the_stored_estimate_of_a_small_model_is_what_is_estimated_now():
    found, kept = estimated(SIZES["0.5B"]), stored()["0.5B"]
    for way, both in found.items():
        assert both == pytest.approx(kept[way], rel=0.02)


def test_a_cell_has_the_smallest_device_that_is_filled_to_nine_tenths_at_most():
    ways = {"all weights": (71.9, 73.0), "LoRA": (7.2, 7.3), "LoRA on 8 bits": (1, 21.6), "LoRA on 4 bits": (1, 43.3)}
    lines = tables({"tiny": ways}).splitlines()
    rows = [line for line in lines if line.startswith("| tiny")]
    assert rows == [
        "| tiny | 71.9: **80** | 7.2: **8** | 1.0: **8** | 1.0: **8** |",
        "| tiny | 73: none | 7.3: **16** | 21.6: **24** | 43.3: **80** |",
    ]


def test_the_shapes_have_the_published_numbers_of_weights():
    # In billions, as their model cards say: 0.49, 1.54, 3.09, 7.61, 14.7, 32.5 and 72.7.
    published = {"0.5B": 0.49, "1.5B": 1.54, "3B": 3.09, "7B": 7.61, "14B": 14.7, "32B": 32.5, "72B": 72.7}
    for name, size in SIZES.items():
        attention = size.hidden * size.hidden * 2 + 2 * size.hidden * size.hidden // size.heads * size.key_heads
        biases = size.hidden + 2 * size.hidden // size.heads * size.key_heads
        layer = attention + biases + 3 * size.hidden * size.intermediate + 2 * size.hidden
        vocabulary = size.vocabulary * size.hidden * (1 if size.tied else 2)
        assert (size.layers * layer + vocabulary + size.hidden) / 1e9 == pytest.approx(published[name], rel=0.015)
