"""Reinforcement learning with the unsloth backend against the hf backend, each in its own process with a dataserver.

Both continue from the same adapter in float32, so completions, rewards and training must match.
"""

from pathlib import Path

import pytest

from rl.rl_runs import journal, lines, write_run
from running import metrics
from several_runs import BEFORE_UNSLOTH, command, in_one_process, numbers, require_close_weights
from sharp_model import write_adapter

MEASURED = ("loss", "grad_norm", "reward", "kl", "entropy")
# GRPO has a KL divergence, so the initial adapter is evaluated too.
CHANGES = {
    "lora": None,
    "algorithm": "grpo",
    "evaluation": None,
    "training": {"max_steps": 3, "schedule": "constant"},
}


@pytest.fixture(scope="module")
def configs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The config of a completed run for each backend."""
    folder = tmp_path_factory.mktemp("backends")
    adapter = write_adapter(tiny_model, folder / "adapter")
    found = {}
    for backend in ("hf", "unsloth"):
        model = {"dtype": "float32", "adapter": str(adapter), "backend": backend}
        found[backend] = write_run(folder / backend, tiny_model, name=backend, model=model, **CHANGES)
        started = folder / f"{backend}-started"
        started.mkdir()
        in_one_process(command("toolkit-rl-train", found[backend], backend), folder=started)
    return found


def run_of(configs: dict[str, Path], backend: str) -> Path:
    return configs[backend].parent / "runs" / backend


def test_three_steps_through_unsloth_are_three_steps_through_hf(configs: dict[str, Path]) -> None:
    hf, unsloth = (run_of(configs, backend) for backend in ("hf", "unsloth"))
    said = lines(unsloth / "completions.jsonl")
    assert said
    assert [row["completion"] for row in said] == [row["completion"] for row in lines(hf / "completions.jsonl")]
    assert [row["order_hash"] for row in metrics(unsloth)] == [row["order_hash"] for row in metrics(hf)]
    expected, found = numbers(hf, *MEASURED), numbers(unsloth, *MEASURED)
    assert len(found) == 3
    assert expected[2][3] > 1e-3  # KL: the runs have learnt something, so they could differ
    for step, wanted in zip(found, expected, strict=True):
        assert step == pytest.approx(wanted, abs=1e-4)
    require_close_weights(hf, unsloth, within=1e-4)


def test_the_dataservers_graded_the_same_completions(configs: dict[str, Path]) -> None:
    graded = journal(configs["unsloth"])
    assert len(graded) == 3 * 8
    assert len({row[-1] for row in graded}) > 1
    assert [row[-2:] for row in graded] == [row[-2:] for row in journal(configs["hf"])]


def test_unsloth_comes_before_what_it_rewrites_and_leaves_nothing_where_it_is_started(
    configs: dict[str, Path],
) -> None:
    started = configs["unsloth"].parent.with_name("unsloth-started")
    assert [file.name for file in started.iterdir()] == [BEFORE_UNSLOTH]
    assert (started / BEFORE_UNSLOTH).read_text() == "[]"
