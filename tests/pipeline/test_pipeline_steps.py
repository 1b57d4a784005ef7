"""Steps run in their order, once each, and only if something they depend on has changed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from pipeline.pipeline_cases import Case
from posttrain.pipeline.plan import in_order
from posttrain.pipeline.steps.base import StepConfig
from posttrain.pipeline.steps.command import CommandStep

Run = Callable[..., Result]


def change_step(case: Case, name: str, **changes: object) -> None:
    import yaml

    config = yaml.safe_load(case.config.read_text())
    config["steps"][name] |= changes
    case.config.write_text(yaml.safe_dump(config, sort_keys=False))


def text(case: Case, step: str) -> str:
    return (case.folder_of(step) / "text").read_text()


def test_each_step_gets_what_the_ones_before_made_and_runs_once(commands: Case, run: Run) -> None:
    run(commands)
    assert [text(commands, step) for step in ("one", "two", "three")] == ["ONE", "TWOONE", "THREETWOONE"]
    assert commands.results() == {"one": "done", "two": "done", "three": "done"}
    run(commands)
    assert commands.results() == {"one": "kept", "two": "kept", "three": "kept"}


def test_a_step_that_makes_the_same_again_runs_nothing_below_it(commands: Case, run: Run) -> None:
    run(commands)
    (commands.folder / "one.txt").write_text("one # a remark\n")
    run(commands)
    assert commands.results() == {"one": "done", "two": "kept", "three": "kept"}
    (commands.folder / "one.txt").write_text("uno\n")
    run(commands)
    assert commands.results() == {"one": "done", "two": "done", "three": "done"}
    assert text(commands, "three") == "THREETWOUNO"


def test_what_does_not_need_a_failed_step_runs_all_the_same(commands: Case, run: Run) -> None:
    change_step(commands, "two", argv=[sys.executable, "-c", "raise SystemExit(3)"])
    change_step(commands, "three", after=["one"], argv=[sys.executable, "-c", "open('{out}', 'w')"], enabled=False)
    change_step(commands, "one", enabled=True)
    commands.change(
        "chain.yaml", steps={"four": {"run": "command", "argv": ["true"], "outputs": ["x"], "after": ["two"]}}
    )
    result = run(commands, expect=1)
    assert commands.results() == {"one": "done", "two": "failed", "three": "skipped", "four": "not run"}
    assert "two" in result.output and "exit code 3" in result.output


def test_after_a_failure_nothing_else_starts_if_that_is_wanted(commands: Case, run: Run) -> None:
    change_step(commands, "one", argv=["false"])
    change_step(commands, "two", after=[], argv=["true"])
    run(commands, "--stop-at-failure", expect=1)
    assert "two" not in commands.results() or commands.results()["two"] == "not run"


def test_a_step_that_does_not_make_what_it_says_has_failed(commands: Case, run: Run) -> None:
    change_step(commands, "three", outputs=["text", "picture"])
    assert "picture" in run(commands, expect=1).output
    assert commands.results()["three"] == "failed"


def test_until_runs_a_step_and_what_it_needs(commands: Case, run: Run) -> None:
    run(commands, "--until", "two")
    assert commands.results() == {"one": "done", "two": "done"}


def test_rerun_makes_results_again_and_what_is_equal_is_kept_below(commands: Case, run: Run) -> None:
    run(commands)
    before = (commands.folder_of("two") / "text").stat().st_mtime_ns
    run(commands, "--rerun", "two")
    assert commands.results() == {"one": "kept", "two": "done", "three": "kept"}
    assert (commands.folder_of("two") / "text").stat().st_mtime_ns > before


def test_a_result_that_was_changed_by_hand_is_named_and_nothing_runs(commands: Case, run: Run) -> None:
    run(commands)
    changed = commands.folder_of("one") / "text"
    changed.write_text("ONE!")
    (commands.folder / "two.txt").write_text("due\n")
    result = run(commands, expect=2)
    assert str(changed) in result.output.replace("\n", "")
    assert "--rerun one" in result.output.replace("\n", " ")
    run(commands, "--rerun", "one")
    assert text(commands, "three") == "THREEDUEONE"


def test_environment_and_arguments_count(commands: Case, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    change_step(commands, "one", environment=["FLAVOUR"])
    monkeypatch.setenv("FLAVOUR", "sweet")
    run(commands)
    run(commands)
    assert commands.results()["one"] == "kept"
    monkeypatch.setenv("FLAVOUR", "sour")
    run(commands)
    assert commands.results() == {"one": "done", "two": "kept", "three": "kept"}


def test_prune_removes_results_that_the_config_does_not_name_any_more(commands: Case, run: Run) -> None:
    run(commands)
    old = commands.folder_of("one")
    (commands.folder / "one.txt").write_text("uno\n")
    run(commands)
    assert old.exists()
    run(commands, "--prune")
    assert not old.exists()
    run(commands)
    assert set(commands.results().values()) == {"kept"}


def test_a_program_that_reads_what_a_skipped_step_would_make_is_refused(commands: Case, run: Run) -> None:
    assert "steps.two.argv: one is skipped" in run(commands, "--skip", "one", expect=2).output


def test_each_attempt_at_a_program_gets_an_empty_folder(commands: Case, run: Run) -> None:
    code = (
        "import pathlib, sys; out = pathlib.Path(sys.argv[1]); assert not list(out.iterdir()); (out / 'text').touch()"
    )
    change_step(commands, "one", argv=[sys.executable, "-c", f"{code}; sys.exit(3)", "{out}"])
    run(commands, expect=1)
    run(commands, expect=1)
    assert "exit code 3" in next(each["error"] for each in commands.report()["steps"] if each["step"] == "one")


def test_values_of_the_environment_are_not_kept(commands: Case, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    change_step(commands, "one", environment=["API_TOKEN"])
    monkeypatch.setenv("API_TOKEN", "first-secret")
    run(commands)
    monkeypatch.setenv("API_TOKEN", "second-secret")
    said = run(commands).output
    assert "environment.API_TOKEN changed" in said.replace("\n", " ") and "secret" not in said
    kept = [file.read_bytes() for file in commands.output.rglob("*") if file.is_file()]
    assert kept and not any(b"-secret" in data for data in kept)


def test_prune_looks_at_the_whole_config(commands: Case, run: Run) -> None:
    run(commands)
    for option in ("--until", "--skip"):
        assert "--prune" in run(commands, "--prune", option, "one", expect=2).output
    assert all(commands.folder_of(step).is_dir() for step in ("one", "two", "three"))


def test_the_folder_of_a_run_is_no_folder_of_a_pipeline(commands: Case, run: Run) -> None:
    commands.output.mkdir(parents=True)
    (commands.output / "manifest.json").write_text("{}")
    assert "another name" in run(commands, expect=2).output


def test_steps_that_all_need_the_two_before_are_found_at_once() -> None:
    steps: dict[str, StepConfig] = {
        f"s{n}": CommandStep.model_validate(
            {
                "run": "command",
                "argv": ["x"],
                "outputs": ["y"],
                "after": [f"s{each}" for each in range(max(0, n - 2), n)],
            }
        )
        for n in range(60)
    }
    assert list(in_order(steps, "s59")) == list(steps)


def start(case: Case) -> "subprocess.Popen[bytes]":
    code = "from posttrain.cli.pipeline import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, str(case.config)], stderr=subprocess.PIPE)


def waiting(case: Case) -> None:
    """Let step two wait for a file `go`, and say by a file `here` that it has begun."""
    code = (
        "import pathlib, sys, time; here, out = map(pathlib.Path, sys.argv[1:]); (here / 'here').touch()\n"
        "while not (here / 'go').exists(): time.sleep(0.01)\n"
        "out.mkdir(exist_ok=True); (out / 'text').write_text('TWO')"
    )
    change_step(case, "two", argv=[sys.executable, "-c", code, str(case.folder), "{out}"])


def until_here(case: Case) -> None:
    for _ in range(6000):
        if (case.folder / "here").exists():
            return
        time.sleep(0.01)
    raise AssertionError("step two has not begun")


def test_two_pipelines_do_not_share_a_folder(commands: Case, run: Run) -> None:
    waiting(commands)
    first = start(commands)
    until_here(commands)
    assert str(first.pid) in run(commands, expect=2).output
    (commands.folder / "go").touch()
    assert first.wait(60) == 0
    run(commands)
    assert set(commands.results().values()) == {"kept"}


@pytest.mark.parametrize(("asked", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_pipeline_that_is_stopped_goes_on(commands: Case, run: Run, asked: int, code: int) -> None:
    waiting(commands)
    first = start(commands)
    until_here(commands)
    os.kill(first.pid, asked)
    assert first.wait(60) == code
    assert commands.results() == {"one": "done", "two": "stopped"}
    (commands.folder / "go").touch()
    run(commands)
    assert commands.results() == {"one": "kept", "two": "done", "three": "done"}


WRONG: dict[str, tuple[dict, list[str]]] = {
    "unknown step": ({"after": ["oen"]}, ["oen", "one"]),
    "cycle": ({"after": ["three"]}, ["two", "three"]),
    "missing file": ({"inputs": ["nowhere.txt"]}, ["nowhere.txt"]),
    "unknown placeholder": ({"argv": ["true", "{nowhere}"]}, ["{nowhere}", "steps.two.argv"]),
    "outputs elsewhere": ({"outputs": ["/etc/passwd"]}, ["/etc/passwd"]),
    "outputs above the folder": ({"outputs": ["../text"]}, ["../text"]),
    "unknown kind": ({"run": "comand"}, ["steps.two", "command"]),
    "unknown key": ({"outptus": ["x"]}, ["outptus", "outputs"]),
}


@pytest.mark.parametrize("name", ["base", "previous", "out", "a.b", "../evil"])
def test_names_that_mean_something_else_are_refused(commands: Case, run: Run, name: str) -> None:
    step = {"run": "command", "argv": ["true"], "outputs": ["x"]}
    text = commands.config.read_text()
    commands.change("chain.yaml", steps={name: step})
    assert name in run(commands, expect=2).output
    commands.config.write_text(text)
    commands.change("chain.yaml", rounds={"times": 1, "previous": "one", "steps": {name: step}})
    assert name in run(commands, expect=2).output


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_before_anything_runs(commands: Case, run: Run, name: str) -> None:
    changes, words = WRONG[name]
    change_step(commands, "two", **changes)
    said = run(commands, expect=2).output
    assert all(word in said for word in words), said
    assert not (commands.folder / "runs").exists() or not any((commands.folder / "runs").rglob("text"))


@pytest.mark.parametrize("option", ["--until", "--rerun", "--skip"])
def test_an_option_that_names_no_step_is_refused(commands: Case, run: Run, option: str) -> None:
    said = run(commands, option, "nowhere", expect=2).output
    assert "nowhere" in said and option in said
    assert not list(Path(commands.folder).glob("runs/chain/*"))
