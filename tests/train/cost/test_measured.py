"""What a model costs here is measured once a day, and again for another model."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.base.cache import cache_dir
from posttrain.models.model_shape import TrainedModel, read_shape
from posttrain.train.cost.measured import Measured, measured

pytestmark = pytest.mark.usefixtures("own_cache")


def measure(trained: TrainedModel, size: tuple[int, int] | None = (2, 16)) -> Measured:
    return measured(trained, read_shape(trained), "cpu", size)


def entries() -> list[Path]:
    return sorted(cache_dir().glob("costs/*.json"))


def rewrite(entry: Path, **changes: Any) -> None:
    """Replace the time or a number of what is kept."""
    since, (kept, seconds) = json.loads(entry.read_text())
    seconds["layer"] = changes.get("layer", seconds["layer"])
    entry.write_text(json.dumps([changes.get("since", since), [kept, seconds]]))


def test_what_was_measured_is_read_again(trained: Callable[..., TrainedModel]) -> None:
    first = measure(trained())
    assert measure(trained()) == first
    (entry,) = entries()
    rewrite(entry, layer=123.0)
    _, seconds = measure(trained())
    assert seconds is not None
    assert seconds.layer == 123.0


@pytest.mark.parametrize("hours", [25, -1])
def test_numbers_of_another_day_are_measured_again(trained: Callable[..., TrainedModel], hours: int) -> None:
    measure(trained())
    (entry,) = entries()
    rewrite(entry, layer=123.0, since=time.time() - 3600 * hours)
    _, seconds = measure(trained())
    assert seconds is not None
    assert seconds.layer < 100


def test_a_damaged_entry_is_measured_again(trained: Callable[..., TrainedModel]) -> None:
    first = measure(trained(), None)
    (entry,) = entries()
    entry.write_text(entry.read_text()[:-9])
    assert measure(trained(), None) == first


def test_the_learning_rate_changes_nothing_and_layers_and_lengths_do(trained: Callable[..., TrainedModel]) -> None:
    measure(trained())
    training = {"rows_per_step": 4, "micro_batch_size": 2}
    measure(trained(training={**training, "learning_rate": 1e-3}))
    assert len(entries()) == 1
    measure(trained(), (2, 32))
    measure(trained(lora={"r": 4}))
    measure(trained(training={**training, "gradient_checkpointing": True}))
    assert len(entries()) == 4
