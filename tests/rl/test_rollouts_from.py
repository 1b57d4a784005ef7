"""A run trains on what another run recorded, and becomes the same run."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dataserver.serving import Server, serving
from posttrain.cli.rl_train import main
from posttrain.errors import ConfigError, DataError, ToolkitError
from posttrain.inspect.folders import read_run
from posttrain.inspect.verify import verify
from posttrain.rl.rollout.store.files import generations_in, read_rollouts
from rl.rl_runs import (
    STEPS,
    WriteRun,
    folder_of,
    refusing,
    require_same_runs,
    staleness_of,
    started,
    train_here,
    wait_for_step,
    write_run,
)


def changes(staleness: int) -> dict[str, Any]:
    return {"rollout": {"staleness": staleness, "threads": 1}}


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.long)])
def recorded(request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that recorded what it trained, and was killed and resumed in the middle."""
    more = changes(request.param)
    more["rollout"]["record"] = True
    config = write_run(tmp_path_factory.mktemp("recorded"), tiny_model, **more)
    killed_at(config, 5)
    train_here(config, resume=True)
    return config


def killed_at(config: Path, step: int, *options: str) -> None:
    with started(config, *options) as process:
        wait_for_step(config, step, process)
        process.kill()
        process.wait()


ONCE = pytest.mark.parametrize("recorded", [0], indirect=True)


@pytest.fixture(scope="module")
def server(recorded: Path) -> Iterator[Server]:
    """The dataserver of the recorded run, running."""
    with serving(recorded.with_name("data.yaml")) as server:
        yield server


def test_the_same_config_gives_the_same_run(recorded: Path, a_run: WriteRun) -> None:
    config = a_run(**changes(staleness_of(recorded)))
    train_here(config, rollouts_from=folder_of(recorded))
    require_same_runs(recorded, config)
    manifest = json.loads((folder_of(config) / "manifest.json").read_text())
    source = json.loads((folder_of(recorded) / "manifest.json").read_text())
    assert manifest["identity"]["rollouts_from"] == {
        "run": "rl",
        "started": source["started"],
        "identity": source["identity"],
    }
    findings = verify(read_run(folder_of(config)), lambda line: None)
    assert [each.text for each in findings if each.outcome == "fails"] == []


@pytest.mark.long
def test_a_run_on_recorded_rollouts_that_is_killed_goes_on_as_if_nothing_had_happened(
    recorded: Path, a_run: WriteRun
) -> None:
    config = a_run(**changes(staleness_of(recorded)))
    killed_at(config, 5, "--rollouts-from", str(folder_of(recorded)))
    with pytest.raises(ConfigError, match=r"rollouts_from\.run: rl → absent"):
        train_here(config, resume=True)
    train_here(config, resume=True, rollouts_from=folder_of(recorded))
    require_same_runs(recorded, config)


def test_what_is_trained_is_recorded_whole(recorded: Path) -> None:
    folder, k = folder_of(recorded), staleness_of(recorded)
    assert generations_in(folder) == list(range(STEPS))
    for number in range(STEPS):
        rollouts, facts = read_rollouts(folder / "rollouts", f"generation-{number:08d}")
        assert (len(rollouts), facts) == (8, {"iteration": number})
        assert {int(version) for each in rollouts for version in each.versions} == {max(0, number - k)}
        assert all(each.result is not None for each in rollouts)
        assert all((each.logprobs is not None) == (k > 0) for each in rollouts)


@pytest.fixture
def without_evaluation(recorded: Path, a_run: WriteRun, server: Server) -> Path:
    dataserver = {"config": None, "url": server.url}
    return a_run(**changes(staleness_of(recorded)), evaluation=None, dataserver=dataserver)


def test_an_engine_is_opened_only_for_evaluations(recorded: Path, without_evaluation: Path) -> None:
    train_here(without_evaluation, rollouts_from=folder_of(recorded))
    assert not folder_of(without_evaluation).with_name("rl.engine-0.log").exists()
    for file in ("adapter_model.safetensors", "checkpoint-8/optimizer.pt"):
        assert (folder_of(without_evaluation) / file).read_bytes() == (folder_of(recorded) / file).read_bytes()


def test_the_dataserver_is_asked_for_nothing_but_evaluations(recorded: Path, a_run: WriteRun, server: Server) -> None:
    asked: list[tuple[str, str]] = []

    def note(path: str, body: dict[str, Any]) -> bool:
        what = body.get("split") or body.get("request_id", "").partition("/")[2].partition("-")[0]
        asked.append((path, what))
        return False

    with refusing(server.url, note) as url:
        config = a_run(**changes(staleness_of(recorded)), dataserver={"config": None, "url": url})
        train_here(config, rollouts_from=folder_of(recorded))
    assert {each for each in asked if each[0] != "/steps"} == {("/sample", "validation"), ("/grade", "eval")}
    assert sum(path == "/steps" for path, _ in asked) == STEPS


@ONCE
def test_filters_and_advantages_are_computed_anew(recorded: Path, a_run: WriteRun) -> None:
    # mean_reward rejects every group, so that the run has nothing to train.
    rollout = {"filters": [{"kind": "mean_reward", "min": 1.0}], "rejected": "drop", **changes(0)["rollout"]}
    config = a_run(rollout=rollout, evaluation=None, training={"max_steps": 2})
    train_here(config, rollouts_from=folder_of(recorded))
    rows = [json.loads(line) for line in (folder_of(config) / "metrics.jsonl").read_text().splitlines()]
    assert [(row["grad_norm"], row["rollouts/accepted_share"]) for row in rows] == [(0.0, 0.0)] * 2


TWICE = {"data": {"prompts_per_iteration": 4, "iteration_stride": 2}, "rollout": {"steps_per_generation": 2}}
OTHER_SHAPE = {"rollout": {"generations": 2}, "training": {"rows_per_step": 4, "micro_batch_size": 2}}


@ONCE
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {"training": {"max_steps": 9}, "dataserver": {"beyond_last_stage": True}},
            "no record of generation 8, .* lower training.max_steps to at most 8",
        ),
        (OTHER_SHAPE, "has 2 prompts with 4 completions each, but here it takes 2 with 2"),
        (TWICE, "has 2 prompts with 4 completions each, but here it takes 4 with 4"),
        ({"data": {"iteration_stride": 2}, "rollout": {"iterations": 2}}, "was asked for step 1, but .* from step 2"),
        ({"rollout": {"max_new_tokens": 7}}, "has completions of 8 tokens; raise rollout.max_new_tokens, which is 7"),
        ({"rollout": {"segment_tokens": 4}}, "recorded completions are whole; leave out rollout.segment_tokens"),
    ],
)
def test_rollouts_that_do_not_fit_are_refused_before_a_model_is_loaded(
    recorded: Path, a_run: WriteRun, other: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(a_run("other", **{"evaluation": None, **other}), folder_of(recorded), told, monkeypatch)


def refuse(
    config: Path,
    source: Path,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    error: type[ToolkitError] = ConfigError,
) -> None:
    """Assert that a run refuses the rollouts before it loads a model."""

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("posttrain.models.hf.HfBackend.load_for_training", load)
    with pytest.raises(error, match=told):
        train_here(config, rollouts_from=source)
    assert not (folder_of(config) / "manifest.json").exists()


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the recorded run's folder, to be changed."""
    folder = tmp_path / "copy"
    shutil.copytree(folder_of(recorded), folder)
    yield folder


@ONCE
def test_rollouts_of_another_tokenizer_are_refused(
    copy: Path, without_evaluation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["identity"]["tokenizer"] = "another"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    refuse(without_evaluation, copy, "encoded by another tokenizer", monkeypatch)
    plan = CliRunner().invoke(main, [str(without_evaluation), "--dry-run", "--rollouts-from", str(copy)])
    assert plan.exit_code == 2
    assert "encoded by another tokenizer" in plan.stderr


@ONCE
def test_a_damaged_generation_is_found_before_a_model_is_loaded(
    copy: Path, without_evaluation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copy / "rollouts" / "generation-00000006.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    refuse(without_evaluation, copy, "generation-00000006.safetensors is damaged", monkeypatch, DataError)


@ONCE
def test_a_run_that_recorded_nothing_is_refused(
    copy: Path, without_evaluation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(copy / "rollouts")
    refuse(without_evaluation, copy, "record the run with rollout.record: true", monkeypatch)


@ONCE
@pytest.mark.parametrize("key", ["correction: token_mask", "ratio: behaviour"])
def test_a_correction_without_recorded_probabilities_is_refused(
    recorded: Path, a_run: WriteRun, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value = f"importance_{key}".split(": ")
    config = a_run("other", rollout={name: value}, evaluation=None)
    refuse(config, folder_of(recorded), rf"rollout\.importance_{key} needs the probabilities", monkeypatch)


@ONCE
def test_a_folder_without_a_run_and_the_own_folder_are_refused(recorded: Path, tmp_path: Path) -> None:
    before = sorted(folder_of(recorded).rglob("*"))
    with pytest.raises(ConfigError, match="is not the folder of a run of toolkit-rl-train"):
        train_here(recorded, rollouts_from=tmp_path)
    with pytest.raises(ConfigError, match="is this run's own folder"):
        train_here(recorded, resume=True, rollouts_from=folder_of(recorded))
    assert sorted(folder_of(recorded).rglob("*")) == before


@ONCE
def test_the_plan_says_where_the_rollouts_come_from(recorded: Path, without_evaluation: Path) -> None:
    plan = CliRunner().invoke(
        main,
        [str(without_evaluation), "--dry-run", "--rollouts-from", str(folder_of(recorded))],
        env={"COLUMNS": "200"},
    )
    assert plan.exit_code == 0, plan.output
    told = [line.split() for line in plan.stderr.splitlines()]
    assert ["rollouts", "recorded", "in", str(folder_of(recorded))] in told
    assert ["generations", "all", "8", "are", "recorded,", "and", "they", "fit"] in told
    assert not any(line[:1] in (["sampling"], ["prompts"]) for line in told)
