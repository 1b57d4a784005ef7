"""`toolkit-rl-debug` fetches prompts, samples and grades as training does, with the chosen weights."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cli.refusals import contents, the_one_error
from dataserver.serving import serving
from posttrain.cli.rl_debug import main
from posttrain.config.load import load_config
from posttrain.errors import ModelError
from posttrain.rl.config import RLConfig
from posttrain.rl.debug.look import DebugRequest, Look, choose_weights, look_at_rollouts
from rl.rl_runs import WriteRun, journal, lines
from sharp_model import write_adapter

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained(left_alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a copy of a finished run, whose last checkpoint is `checkpoint-8`."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    shutil.copytree(left_alone.parent, folder)
    return folder / left_alone.name


@pytest.fixture(scope="module")
def served(trained: Path) -> Iterator[str]:
    """The override that points to a running dataserver with that run's config and no journal."""
    data = yaml.safe_load(trained.with_name("data.yaml").read_text())
    config = trained.with_name("served.yaml")
    config.write_text(yaml.safe_dump({**data, "journal": {"enabled": False}}))
    with serving(config) as server:
        yield f"dataserver={{url: '{server.url}'}}"


def look(config: Path, request: DebugRequest, *overrides: str) -> Look:
    return look_at_rollouts(load_config(config, RLConfig, list(overrides)), config.stem, request)


def shown(config: Path, *arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(config), *arguments], env={"COLUMNS": "160"})
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    return result.stderr


def test_it_samples_and_grades_as_the_first_step_of_training_did_and_leaves_no_trace(trained: Path):
    before = contents(trained.parent)
    seen = look(trained, DebugRequest(prompts=2, weights="start"))
    assert contents(trained.parent) == before
    of_training = [row for row in journal(trained) if row[0] == "train" and row[1] == 0]
    here = [
        (group.prompt.slot, group.prompt.sample_id, completion.text, completion.reward)
        for group in seen.groups
        for completion in group.completions
    ]
    assert sorted(here) == sorted((slot, sample, text, reward) for _, _, slot, _, sample, text, reward in of_training)
    assert len(here) == 8


def test_prompts_beyond_an_iteration_are_those_of_the_next(trained: Path, served: str):
    seen = look(trained, DebugRequest(prompts=3, samples=1, iteration=4), served)
    asked = {(row[1], row[2]): row[4] for row in journal(trained) if row[0] == "train"}
    told = [(group.iteration, group.prompt.slot, group.prompt.sample_id) for group in seen.groups]
    assert told == [(iteration, slot, asked[iteration, slot]) for iteration, slot in ((4, 0), (4, 1), (5, 0))]
    # The lengths of all 16 prompts of the run are measured.
    assert len(seen.lengths) == 16


def test_held_out_prompts_are_those_of_the_evaluation(trained: Path, served: str):
    seen = look(trained, DebugRequest(prompts=50, samples=1, held_out=True), served)
    evaluated = lines(trained.parent / "runs" / "rl" / "evaluations" / "step-000000.jsonl")
    # The evaluation has 2 completions for each of 6 prompts; 10 prompts are held out.
    assert [group.prompt.sample_id for group in seen.groups[:6]] == [row["sample_id"] for row in evaluated[::2]]
    assert len(seen.groups) == len(seen.lengths) == 10


def test_a_generation_for_several_steps_can_be_looked_at_where_it_is_made(trained: Path):
    stride = ("--set", "rollout.iterations=2", "--set", f"dataserver.config={trained.parent}/strided.yaml")
    served = (trained.parent / "data.yaml").read_text()
    (trained.parent / "strided.yaml").write_text(f"{served}iteration_stride: 2\n")
    refused = shown(trained, *stride, "--iteration", "3", exit_code=2)
    assert the_one_error(refused, "") == "--iteration 3: no prompts are sampled at that step; give 2 or 4"
    assert "prompt 1 of 1: data set a, iteration 2, slot 0, " in shown(
        trained, *stride, "--iteration", "2", "--prompts", "1", "--samples", "1"
    )


def test_everything_is_printed(trained: Path, served: str):
    told = shown(trained, "--set", served, "--prompts", "2", "--samples", "3", "--iteration", "2")
    seen = look(trained, DebugRequest(prompts=2, samples=3, iteration=2), served)
    assert told.startswith(f"{seen_model(trained)} with the adapter in {trained.parent}/runs/rl: 3 completions for ")
    for number, group in enumerate(seen.groups, start=1):
        assert f"prompt {number} of 2: data set a, iteration 2, slot {number - 1}, " in told
        assert f"  user: {group.sample.messages[-1].content}" in told
        for place, completion in enumerate(group.completions, start=1):
            score = f"says_a {completion.result.components['says_a'].score:.3g}" if completion.result else ""
            line = next(line for line in told.split(f"prompt {number} of 2")[1].splitlines() if f"  {place}. " in line)
            assert line.startswith(f"  {place}. reward {completion.reward:.3f}, {completion.tokens} tokens")
            assert score in line
        assert f"  {group.different} of 3 completions are distinct\n" in told
    rows = [line.split() for line in told.splitlines()]
    assert ["completions", "6"] in rows
    assert any(row[:1] == ["says_digit"] and row[-3:] == ["6", "of", "6"] for row in rows)
    assert "tokens of 16 prompts: 50 % have at most " in told
    listed = told.split("\nwhat stands out:\n")[1].splitlines()
    assert listed == [f"- {line}" for line in seen.findings]


def test_a_look_at_prompts_that_are_all_too_long_still_tells_how_long_they_are(trained: Path, served: str):
    told = shown(trained, "--set", served, "--prompts", "1", "--set", "rollout.max_prompt_tokens=1")
    assert "  too long: nothing is generated for it\n" in told
    assert "\n- 16 of 16 prompts (100%) are longer than rollout.max_prompt_tokens 1 and would be skipped: " in told


def seen_model(config: Path) -> str:
    return load_config(config, RLConfig).model.name


def test_weights_are_the_runs_or_where_it_starts_or_a_folders(trained: Path, tiny_model: Path, tmp_path: Path):
    config = load_config(trained, RLConfig)
    run = trained.parent / "runs" / "rl"
    model = seen_model(trained)
    assert (choose_weights(config, "rl").adapter, choose_weights(config, "rl").model.name) == (run, model)
    assert choose_weights(config, "rl", "start").adapter is None
    assert choose_weights(config, "another").adapter is None
    assert choose_weights(config, "rl", str(run / "checkpoint-4")).adapter == run / "checkpoint-4"

    unfinished = tmp_path / "unfinished"
    shutil.copytree(run, unfinished)
    (unfinished / "result.json").unlink()
    moved = load_config(trained, RLConfig, [f"run.output_dir={tmp_path}"])
    assert choose_weights(moved, "unfinished").adapter == unfinished / "checkpoint-8"

    adapter = write_adapter(tiny_model, tmp_path / "adapter")
    continued = {"model": config.model.model_copy(update={"adapter": adapter})}
    assert choose_weights(config.model_copy(update=continued), "rl", "start").adapter == adapter

    whole = choose_weights(config.model_copy(update=continued), "rl", str(tiny_model))
    assert (whole.model.name, whole.model.adapter, whole.adapter) == (str(tiny_model), None, None)


def test_a_folder_without_a_model_is_refused(trained: Path, tmp_path: Path):
    with pytest.raises(ModelError, match=r"neither an adapter_config\.json nor a config\.json"):
        choose_weights(load_config(trained, RLConfig), "rl", str(tmp_path))
    refused = shown(trained, "--weights", str(tmp_path), exit_code=2)
    assert the_one_error(refused, "").startswith(f"--weights: {tmp_path} has neither")


def test_other_weights_say_something_else(trained: Path, served: str, tiny_model: Path, tmp_path: Path):
    adapter = write_adapter(tiny_model, tmp_path / "adapter")
    texts = [
        [
            completion.text
            for completion in look(trained, DebugRequest(1, weights=weights), served).groups[0].completions
        ]
        for weights in (str(adapter), "start")
    ]
    assert texts[0] != texts[1]


def test_held_out_prompts_are_refused_where_there_are_none(a_run: WriteRun):
    rows = {"gold": None, "graders": {"says_a": 1}}
    datasets = {name: {"path": f"{name}.jsonl", **rows} for name in ("a", "b")}
    refused = shown(a_run(data={"datasets": datasets}, evaluation=None), "--held-out", exit_code=2)
    assert the_one_error(refused, "").startswith("--held-out: the dataserver holds out no rows; ")


def test_the_filters_verdicts_are_shown_if_there_are_filters(trained: Path, served: str):
    lengths = "rollout.filters=[{kind: length, max_tokens: 1, of: all}]"
    told = shown(trained, "--prompts", "2", "--samples", "2", "--weights", "start", "--set", served, "--set", lengths)
    assert told.count("  rejected by length: 2 of 2 completions") == 2
    assert ["length", "2", "of", "2", "100%"] in [line.split() for line in told.splitlines()]
    assert "- rollout.filters reject all 2 groups (length 2)" in told
