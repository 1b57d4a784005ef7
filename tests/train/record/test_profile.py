"""A trace of some steps by torch's profiler."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

from posttrain.config.sections.training import ProfileConfig
from posttrain.runs.resume import ResumePoint, RunCounters
from train.small_training import TokenRecipe, make, settings, train


def profiled_steps(trace: Path) -> list[str]:
    """The profiler's marks of steps in a trace."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
    return sorted({event["name"] for event in events if re.fullmatch(r"ProfilerStep#\d+", event.get("name", ""))})


def test_the_named_steps_are_recorded_in_a_file_of_the_run(tmp_path: Path, tiny_model: Path):
    training = settings().model_copy(update={"profile": ProfileConfig(first_step=2, steps=3)})
    train(make(tmp_path / "run", tiny_model, TokenRecipe(), training=training))
    # The profiler counts from 0.
    trace = tmp_path / "run" / "profile-steps-2-4.json.gz"
    assert profiled_steps(trace) == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]


def test_a_resumed_run_records_what_lies_before_it_and_not_what_is_done(tmp_path: Path, tiny_model: Path):
    whole = train(make(tmp_path / "run", tiny_model, TokenRecipe()), save_every=3)
    for first_step, file in ((3, None), (4, "profile-steps-4-5.json.gz"), (5, "profile-steps-5-6.json.gz")):
        training = settings().model_copy(update={"profile": ProfileConfig(first_step=first_step)})
        folder = tmp_path / f"resumed-{first_step}"
        point = ResumePoint(whole.run.path / "checkpoint-3", RunCounters(step=3))
        train(make(folder, tiny_model, TokenRecipe(), point, training))
        assert [each.name for each in folder.glob("profile*")] == ([] if file is None else [file])
        if file is not None:
            assert len(profiled_steps(folder / file)) == 2
