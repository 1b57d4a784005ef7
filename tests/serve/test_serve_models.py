"""Each choice of weights of a run is a model with a name of its own; as many stay in memory as are allowed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from serve_cases import write_config
from typer.testing import CliRunner, Result

from posttrain.cli.serve import main
from posttrain.errors import ConfigError
from posttrain.inference.config import load_inference_config
from posttrain.inference.engine import GenerationRequest, Sampling
from posttrain.runs.checkpoints import record_files
from posttrain.serve.config import ServeLimits, serve_config
from posttrain.serve.models import Choice, Models, find_models
from sharp_model import write_adapter


@pytest.fixture(scope="module")
def trained(endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a run with an exported adapter, two checkpoints and a merged model, whose answers all differ."""
    folder = tmp_path_factory.mktemp("trained")
    config = write_config(folder / "run.yaml", endless_model)
    run = folder / "runs" / "run"
    run.mkdir(parents=True)
    shutil.copy(config, run / "config.yaml")
    (run / "manifest.json").write_text("{}")
    for seed, place in enumerate(("exported", "checkpoint-2", "checkpoint-10")):
        made = write_adapter(endless_model, folder / "made" / place, seed)
        target = run if place == "exported" else run / place
        shutil.copytree(made, target, dirs_exist_ok=True)
        if target != run:
            (target / "toolkit_state.json").write_text(json.dumps({"files": record_files(target)}))
    shutil.copytree(endless_model, run / "merged")
    return config


def answer(models: Models, name: str) -> tuple[int, ...]:
    engine, _ = models.engine(name)
    return engine.complete([GenerationRequest((5, 6, 7))], Sampling(6))[0, 0].token_ids


def test_all_weights_of_a_run_have_names(trained: Path):
    assert list(find_models(Choice(trained), [])) == ["run", "run:merged", "run:adapter", "run:base", "run:2", "run:10"]
    assert list(find_models(Choice(trained), ["base", "latest", "2", "base"])) == ["run:base", "run:latest", "run:2"]


def test_before_a_training_there_is_the_base(config: Path):
    assert list(find_models(Choice(config), [])) == ["run:base"]


@pytest.mark.parametrize(
    ("wanted", "reason"), [("best", "--weights best: give auto, merged"), ("3", "3"), ("-1", "--weights -1")]
)
def test_weights_that_are_not_there_are_refused(trained: Path, wanted: str, reason: str):
    with pytest.raises(ConfigError, match=reason):
        find_models(Choice(trained), [wanted])


def test_as_many_models_stay_in_memory_as_are_allowed(trained: Path):
    """The merged model here is the base, and each adapter changes the answer."""
    models = Models(find_models(Choice(trained), []), load_inference_config(trained).generation, 2)
    names = ["run:base", "run:adapter", "run:2", "run:10", "run:merged"]
    answers = {name: answer(models, name) for name in names}
    assert len({answers[name] for name in names[:4]}) == 4
    assert answers["run:merged"] == answers["run:base"]
    kept = {name: models.engine(name)[0] for name in ("run:10", "run:merged")}
    models.engine("run:10")
    again = models.engine("run:2")[0]  # in the place of run:merged, which was not used for longer
    assert models.engine("run:10")[0] is kept["run:10"]
    assert models.engine("run:2")[0] is again
    assert models.engine("run:merged")[0] is not kept["run:merged"]
    assert {name: answer(models, name) for name in names} == answers
    models.close()


@pytest.fixture
def run(config: Path) -> Callable[..., Result]:
    def run_(*options: str) -> Result:
        return CliRunner().invoke(main, [str(config), *options])

    return run_


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--host", "0.0.0.0"), "on host 0.0.0.0 other machines can reach this server; set token_env"),
        (("--port", "70000"), "--port: "),
        (("--token-env", "not-a-name"), "--token-env: should be the name of an environment variable"),
        (("--token-env", "NOT_SET_ANYWHERE"), "--token-env: the environment variable NOT_SET_ANYWHERE is not set"),
        (("--limit", "que=3"), "--limit que=3: there is no such limit; did you mean queue?"),
        (("--limit", "zzz"), "there are queue, n, seconds"),
        (("--limit", "queue=0"), "--limit queue: "),
        (("--limit", "queue"), "write it as key=value"),
        (("--limit", "seconds=soon"), "--limit seconds: "),
        (("--weights", "adapter"), "there is no run in"),
        (("--weights", "best"), "--weights best: give auto"),
        (("--set", "training.seed=1"), "this command reads only"),
        (("--set", "model.name=/nowhere"), "/nowhere"),
        (("--host", "no.such.host.invalid", "--token-env", "TOKEN_FOR_TESTS"), "cannot listen on no.such.host.invalid"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(
    run: Callable[..., Result], options: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKEN_FOR_TESTS", "long-enough-for-a-token")
    result = run(*options)
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_a_dry_run_says_which_models_there_would_be(trained: Path):
    result = CliRunner().invoke(main, [str(trained), "--dry-run"])
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == list(find_models(Choice(trained), []))
    assert lines[-1] == "nothing was loaded (--dry-run)"


def test_every_limit_can_be_set(config: Path):
    given: dict[str, Any] = {
        "queue": 3, "n": 4, "seconds": 5.5, "body_mb": 0.25, "receive_seconds": 7.0, "connections": 8, "loaded": 9,
    }  # fmt: skip
    assert given.keys() == ServeLimits.model_fields.keys()
    limits = [f"{name}={yaml.safe_dump(value).split()[0]}" for name, value in given.items()]
    assert serve_config("127.0.0.1", 8000, None, limits).limits.model_dump() == given
