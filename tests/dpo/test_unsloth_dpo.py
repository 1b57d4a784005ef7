"""Preference optimisation through unsloth matches the hf backend; each backend runs in its own process.

Both start from the same adapter in float32, so that all three steps agree, not only the first one.
"""

from pathlib import Path

import pytest

from dpo.dpo_runs import write_run
from running import metrics
from several_runs import BEFORE_UNSLOTH, command, in_one_process, numbers, require_close_weights
from sharp_model import write_adapter

REFERENCES = ("cached", "live")
# The metrics of a step that are compared.
MEASURED = ("loss", "grad_norm", "reward_margin", "chosen_reward", "chosen_logprob", "rejected_logprob")


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of both backends, `runs/<backend>-<reference>`."""
    folder = tmp_path_factory.mktemp("backends")
    adapter = write_adapter(tiny_model, folder / "adapter")
    model = {"name": str(tiny_model), "dtype": "float32", "adapter": str(adapter)}
    config = write_run(folder, tiny_model, model=model, lora=..., method={"type": "dpo", "beta": 0.5})
    for backend in ("hf", "unsloth"):
        started = folder / backend
        started.mkdir()
        runs = [
            command("toolkit-dpo", config, f"{backend}-{kind}", f"model.backend={backend}", f"reference.type={kind}")
            for kind in REFERENCES
        ]
        # Separate caches, so that each computes its own reference.
        in_one_process(*runs, folder=started, POSTTRAIN_TOOLKIT_CACHE=str(folder / f"{backend}-cache"))
    return folder


@pytest.mark.parametrize("reference", REFERENCES)
def test_three_steps_through_unsloth_are_three_steps_through_hf(folder: Path, reference: str) -> None:
    hf, unsloth = (folder / "runs" / f"{backend}-{reference}" for backend in ("hf", "unsloth"))
    assert [row["order_hash"] for row in metrics(unsloth)] == [row["order_hash"] for row in metrics(hf)]
    expected, found = numbers(hf, *MEASURED), numbers(unsloth, *MEASURED)
    assert len(found) == 3
    assert expected[0] != pytest.approx(expected[2], abs=1e-2)  # training changes the numbers, so they could differ
    for step, wanted in zip(found, expected, strict=True):
        assert step == pytest.approx(wanted, abs=1e-4, rel=1e-4)
    require_close_weights(hf, unsloth, within=1e-4)


def test_a_cached_reference_gives_the_losses_of_a_live_one(folder: Path) -> None:
    cached, live = (numbers(folder / "runs" / f"unsloth-{kind}", "loss") for kind in REFERENCES)
    assert [loss for [loss] in cached] == pytest.approx([loss for [loss] in live], abs=1e-5)


def test_unsloth_comes_before_what_it_rewrites_and_leaves_nothing_where_it_is_started(folder: Path) -> None:
    assert [file.name for file in (folder / "unsloth").iterdir()] == [BEFORE_UNSLOTH]
    assert (folder / "unsloth" / BEFORE_UNSLOTH).read_text() == "[]"
