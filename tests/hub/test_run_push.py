"""run.push: checkpoints are on the hub after the run, which is the same run with and without it."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from dpo.dpo_runs import write_run as write_dpo_run
from hub_store import TOKEN, Fault, HubServer
from posttrain.cli.sft import main as sft
from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.train import train as train_dpo
from posttrain.errors import ConfigError
from posttrain.hub.package import model_files
from rl.rl_runs import train_here
from rl.rl_runs import write_run as write_rl_run
from running import BIN, kill_after, metrics
from sft.small_sft import train_sft, write_sft_run

REPO = "owner/checkpoints"
PUSH = {"repo": REPO, "base_model": "owner/base", "license": "mit", "retry_seconds": 0}


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Callable[..., Path]:
    """`config(save_every=3)` writes a run of 6 steps that pushes; `push` changes keys of that section."""

    def write(push: dict[str, Any] | None = {}, **run: Any) -> Path:  # noqa: B006 - never changed
        section = {"save_every": 3, "keep_checkpoints": 9, **run}
        return write_sft_run(
            tmp_path, tiny_model, run=section if push is None else {**section, "push": {**PUSH, **push}}
        )

    return write


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """`said()` is what was printed since it was last asked."""
    return lambda: capsys.readouterr().err


def pushed_model(hub: HubServer, step: int) -> dict[str, bytes]:
    """The files of a step that are the same bytes as in its checkpoint."""
    changed = ("README.md", "adapter_config.json", "tokenizer_config.json")
    files = hub.files(REPO, f"step-{step}")
    return {name: data for name, data in files.items() if name not in changed}


def saved_model(checkpoint: Path) -> dict[str, bytes]:
    changed = ("adapter_config.json", "tokenizer_config.json")
    return {name: (checkpoint / name).read_bytes() for name in model_files(checkpoint) if name not in changed}


def test_a_run_that_pushes_is_the_same_run_and_its_checkpoints_are_on_the_hub(
    hub: HubServer, config: Callable[..., Path], said: Callable[[], str]
) -> None:
    alone = train_sft(config(push=None), "alone")
    run = train_sft(config(), "run")
    assert metrics(run) == metrics(alone)
    folders = [{str(path.relative_to(each)) for path in each.rglob("*")} for each in (run, alone)]
    assert folders[0] - folders[1] == {"pushed.json"} and not folders[1] - folders[0]
    for file in ("adapter_model.safetensors", "checkpoint-3/optimizer.pt", "checkpoint-6/adapter_model.safetensors"):
        assert (run / file).read_bytes() == (alone / file).read_bytes()

    assert hub.repos[REPO].private and sorted(hub.repos[REPO].branches) == ["main", "step-3", "step-6"]
    for step in (3, 6):
        assert pushed_model(hub, step) == saved_model(run / f"checkpoint-{step}")
        assert hub.titles(REPO, f"step-{step}") == [f"run, step {step}: adapter"]
        assert f"| optimizer steps | {step} |" in hub.files(REPO, f"step-{step}")["README.md"].decode()
    assert "2 of 2 checkpoints pushed to owner/checkpoints" in said()
    assert not [path for path in run.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_training_does_not_wait_and_no_checkpoint_is_removed_before_it_is_pushed(
    hub: HubServer, config: Callable[..., Path]
) -> None:
    """Six checkpoints of which one stays; each upload takes longer than all steps together."""
    hub.seconds_per_upload = 2.0
    run = train_sft(config(save_every=1, keep_checkpoints=1, push={"keep_unpushed": 9}), "run")
    commits = sorted(at for request, at in hub.times if "/commit/" in request)
    trained = (run / "result.json").stat().st_mtime - time.time() + time.monotonic()
    assert trained < commits[4], "the run had ended before the fifth of six uploads had"
    assert sorted(hub.repos[REPO].branches) == ["main", *(f"step-{step}" for step in range(1, 7))]
    # As without a push: the newest and the best, by the validation at 3 and 6.
    best = (run / "best").read_text()
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-6", best}


def test_what_fails_is_told_with_the_command_that_makes_it_good(
    hub: HubServer, config: Callable[..., Path], said: Callable[[], str]
) -> None:
    hub.faults.append(Fault("/commit/step-3", 500, times=10**6))
    run = train_sft(config(keep_checkpoints=1), "run")
    assert (run / "result.json").is_file() and sorted(hub.repos[REPO].branches) == ["main", "step-3", "step-6"]
    text = said()
    assert "warning: checkpoint-3 is not pushed yet: owner/checkpoints at step-3 has not got all files" in text
    assert "1 of 2 checkpoints pushed to owner/checkpoints" in text
    assert hub.asked("POST .*/commit/step-3") == 2, "once, and once more at the end"
    assert "500" in json.loads((run / "pushed.json").read_text())["missing"]["3"]

    hub.faults.clear()
    [command] = [line.strip() for line in text.splitlines() if line.strip().startswith("toolkit-push ")]
    call = "from posttrain.cli.push import main; main()"
    subprocess.run([sys.executable, "-c", call, *shlex.split(command)[1:]], check=True, capture_output=True)
    assert pushed_model(hub, 3) == saved_model(run / "checkpoint-3")


def test_of_too_many_that_wait_the_oldest_are_given_up(
    hub: HubServer, config: Callable[..., Path], said: Callable[[], str]
) -> None:
    hub.faults.append(Fault("/commit/step-[12345]$", 500, times=10**6))
    run = train_sft(config(save_every=1, keep_checkpoints=1, push={"keep_unpushed": 2}), "run")
    best = (run / "best").read_text()
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-5", "checkpoint-6", best}
    text = said()
    assert re.findall(r"warning: checkpoint-(\d) is not on the hub", text) == ["1", "2", "3", "4", "5"]
    assert re.findall(r"toolkit-push .* --checkpoint (\d) ", text) == sorted({best[-1], "5"} - {"6"})
    assert text.count("it has been removed since") == 5 - len({best[-1], "5"} - {"6"})


def resume(config: Path, name: str) -> None:
    train_sft(config, name, resume=True)


def test_a_resume_pushes_what_is_missing_and_nothing_twice(
    hub: HubServer, config: Callable[..., Path], said: Callable[[], str]
) -> None:
    """A finished run that did not push; then one that does, and once more, with its record and without."""
    run = train_sft(config(push=None), "run")
    resume(config(), "run")
    assert pushed_model(hub, 3) == saved_model(run / "checkpoint-3") and (run / "pushed.json").is_file()
    asked = len(hub.requests)
    resume(config(), "run")
    assert not [each for each in hub.requests[asked:] if not each.startswith("GET")]
    assert hub.asked("tree") == 4, "the record says that nothing is missing"

    (run / "pushed.json").write_text("damaged")
    resume(config(), "run")
    assert hub.asked("/commit/") == 2 and hub.asked("PUT /upload") == 2
    assert "pushed checkpoint-3 to owner/checkpoints at step-3 (it was there)" in said()

    resume(config(push={"repo": "owner/other"}), "run")
    assert sorted(hub.repos["owner/other"].branches) == ["main", "step-3", "step-6"]


def test_a_killed_run_goes_on_and_each_checkpoint_is_on_the_hub_once(
    hub: HubServer, config: Callable[..., Path], tmp_path: Path
) -> None:
    alone = train_sft(config(push=None, save_every=2), "alone")
    path = config(save_every=2)
    kill_after(6, path, tmp_path / "runs" / "sft")
    resume(path, "sft")
    run = tmp_path / "runs" / "sft"
    assert metrics(run) == metrics(alone)
    assert (run / "adapter_model.safetensors").read_bytes() == (alone / "adapter_model.safetensors").read_bytes()
    for step in (2, 4, 6):
        assert len(hub.titles(REPO, f"step-{step}")) == 1
        assert pushed_model(hub, step) == saved_model(alone / f"checkpoint-{step}")


def workers(run: Path) -> list[psutil.Process]:
    """The processes that push a checkpoint of a run."""
    words = [(each, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    return [each for each, line in words if "posttrain.hub.worker" in line and str(run) in line[-1]]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_being_uploaded_ends_with_the_run_and_a_resume_sends_it(
    hub: HubServer, config: Callable[..., Path], tmp_path: Path, number: signal.Signals
) -> None:
    hub.seconds_per_upload = 600.0
    path, run = config(), tmp_path / "runs" / "sft"
    process = subprocess.Popen([BIN / "toolkit-sft", path], stderr=subprocess.PIPE, text=True)
    while hub.asked("PUT /upload") == 0 and process.poll() is None:
        time.sleep(0.05)
    assert workers(run)
    process.send_signal(number)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    if number == signal.SIGTERM:
        assert process.returncode == 143, errors
        assert "not pushed to owner/checkpoints: checkpoint-3" in errors and "--resume pushes what is" in errors
    until = time.monotonic() + 30
    while workers(run) and time.monotonic() < until:
        time.sleep(0.1)
    assert not workers(run)

    hub.seconds_per_upload = 0.0
    resume(path, "sft")
    assert all(len(hub.titles(REPO, f"step-{step}")) == 1 for step in (3, 6))
    assert pushed_model(hub, 3) == saved_model(run / "checkpoint-3")


REFUSED: dict[str, tuple[Callable[[HubServer], object], dict[str, Any], str]] = {
    "a token": (lambda hub: hub.faults.append(Fault("whoami", 401)), {}, "refuses the token in HF_TOKEN"),
    "a public repository": (lambda hub: hub.make(REPO, private=False), {}, "owner/checkpoints is public"),
    "rights": (lambda hub: setattr(hub, "read_only", True), {}, "may not write to owner/checkpoints"),
    "no licence": (lambda hub: None, {"license": None}, "or run.push.license"),
    "no base": (lambda hub: None, {"base_model": None}, "with run.push.base_model"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_is_told_before_the_first_step(
    hub: HubServer, config: Callable[..., Path], tmp_path: Path, why: str
) -> None:
    prepare, push, message = REFUSED[why]
    prepare(hub)
    finished = CliRunner().invoke(sft, [str(config(push=push))])
    assert finished.exit_code == 2, finished.output
    assert message in " ".join(finished.output.split())
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_asks_the_hub_too_and_changes_nothing(hub: HubServer, config: Callable[..., Path]) -> None:
    finished = CliRunner().invoke(sft, [str(config()), "--dry-run"])
    assert finished.exit_code == 0, finished.output
    assert hub.asked("whoami") == 1 and hub.asked("^(POST|PUT)") == 0
    hub.make(REPO, private=False)
    finished = CliRunner().invoke(sft, [str(config()), "--dry-run"])
    assert finished.exit_code == 2 and "is public" in finished.output


@pytest.mark.parametrize(
    ("push", "message"),
    [
        ({"revision": "latest"}, "needs {step}"),
        ({"revision": "a b {step}"}, "a revision is a branch's name"),
        ({"repo": "checkpoints"}, "a repository is named OWNER/NAME"),
    ],
)
def test_names_that_are_none_are_told_with_their_line(
    config: Callable[..., Path], push: dict[str, str], message: str
) -> None:
    finished = CliRunner().invoke(sft, [str(config(push=push)), "--dry-run"])
    assert finished.exit_code == 2
    assert message in " ".join(finished.output.split()) and "sft.yaml:" in finished.output


def test_preference_optimisation_pushes_too_but_not_several_models_to_the_same_revisions(
    hub: HubServer, tmp_path: Path, tiny_model: Path
) -> None:
    path = write_dpo_run(tmp_path, tiny_model, run={"save_every": 2, "push": PUSH})
    config = load_config(path, DPOConfig, ["training.max_steps=2"])
    train_dpo(config, "run")
    assert hub.titles(REPO, "step-2") == ["run, step 2: adapter"]
    assert "preference optimisation (dpo)" in hub.files(REPO, "step-2")["README.md"].decode()

    several = yaml.safe_load(path.read_text())
    del several["model"]
    several["models"] = [{"name": str(tiny_model)}, {"name": str(tiny_model), "dtype": "float32"}]
    path.write_text(yaml.safe_dump(several))
    with pytest.raises(ConfigError, match="several models would share its revisions"):
        load_config(path, DPOConfig)


def test_reinforcement_learning_pushes_too(hub: HubServer, tmp_path: Path, tiny_model: Path) -> None:
    path = write_rl_run(tmp_path, tiny_model, training={"max_steps": 2}, run={"push": PUSH}, evaluation=None)
    train_here(path)
    assert hub.titles(REPO, "step-2") == ["rl, step 2: adapter"]
    card = hub.files(REPO, "step-2")["README.md"].decode()
    assert "reinforcement learning (dr\\_grpo)" in card and "| training reward | 2 | " in card


@pytest.mark.long
@pytest.mark.ranks
def test_of_two_processes_one_pushes(hub: HubServer, config: Callable[..., Path], tmp_path: Path) -> None:
    launch = [BIN / "torchrun", "--standalone", "--nproc-per-node=2", BIN / "toolkit-sft"]
    finished = subprocess.run([*launch, config()], capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stderr
    assert hub.asked("whoami") == 1 and hub.asked("/commit/") == 2
    for step in (3, 6):
        assert pushed_model(hub, step) == saved_model(tmp_path / "runs" / "sft" / f"checkpoint-{step}")
