"""A filter function of the user's: what it receives, and what happens if it fails."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue

from posttrain.config.load import load_config
from posttrain.errors import ConfigError, RunError
from posttrain.rl.config import RLConfig, RolloutConfig
from posttrain.rl.plan import show_plan
from posttrain.rl.rollout.filters.base import Filter
from posttrain.rl.rollout.filters.catalogue import check_user_filters, filter_digests, rejection
from posttrain.rl.rollout.filters.python import PythonFilter
from rl.rl_recipes import WrittenServer, train_written
from rl.rl_runs import WriteRun
from rl.written_rollouts import a_prompt, a_rollout

SEEN = """\
import json
from collections.abc import Mapping, Sequence


def seen(completions, options):
    json.dump(completions, open(options["to"], "w"))
    options["to"] = None
    return options["reason"]
"""


def test_it_gets_plain_data_and_its_own_options_each_time(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SEEN)
    options: dict[str, JsonValue] = {"to": str(tmp_path / "seen.json"), "reason": " too\ndull "}
    own = PythonFilter(kind="python", path=f"{tmp_path}/own.py:seen", options=options)
    prompt = a_prompt(3)
    group = [a_rollout(prompt, 0, [7, 8], 0.5, was_cut=True), a_rollout(prompt, 1, [9], None, status="abstain")]
    for _ in range(2):
        found = rejection([own], group, 12)
        assert found is not None
        assert (found.name, found.reason) == ("seen", "too dull")
    rest = {"prompt": "prompt 3", "dataset": "a", "iteration": 12}
    assert json.loads((tmp_path / "seen.json").read_text()) == [
        {"text": "7 8", "token_ids": [7, 8], "reward": 0.5, "scores": {"it": 0.5}, "truncated": True, **rest},
        {"text": "9", "token_ids": [9], "reward": None, "scores": {"it": None}, "truncated": False, **rest},
    ]


BROKEN = {
    "raises": (
        "def f(completions, options):\n    x = 1\n    raise ValueError('no such thing')\n",
        r":3: ValueError: no such",
    ),
    "no_text": ("def f(completions, options):\n    return True\n", r":1: .*or None, but returned bool"),
    "empty": ("def f(completions, options):\n    return ''\n", r":1: .*but returned an empty text"),
    "missing": ("def g():\n    pass\n", r"has no function 'f'"),
    "syntax": ("def f(:\n", r"broken\.py"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_function_that_fails_is_told_by_file_and_line_before_anything_is_loaded(tmp_path: Path, kind: str) -> None:
    text, told = BROKEN[kind]
    (tmp_path / "broken.py").write_text(text)
    own = PythonFilter(kind="python", path=f"{tmp_path}/broken.py:f")
    with pytest.raises(ConfigError, match=rf"rollout\.filters\.0: .*{told}"):
        check_user_filters([own])


def test_an_error_in_a_run_is_not_a_rejection(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("def f(completions, options):\n    return str(1 / (len(completions) - 1))\n")
    own = PythonFilter(kind="python", path=f"{tmp_path}/late.py:f")
    check_user_filters([own])
    with pytest.raises(RunError, match=r"late\.py:2: ZeroDivisionError"):
        rejection([own], [a_rollout(a_prompt(0), 0, [1])], 0)


def test_a_dry_run_calls_it_on_the_example_and_shows_the_filters(
    a_run: WriteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text("def dull(completions, options):\n    return None\n")
    filters = [{"kind": "reward_spread"}, {"kind": "python", "path": f"{own}:dull"}]
    rollout = {"filters": filters, "rejected": "substitute", "max_new_tokens": 8, "generations": 4}
    config = a_run(dataserver={"config": None, "url": "http://127.0.0.1:9"}, rollout=rollout)
    show_plan(load_config(config, RLConfig), config.stem)
    assert "reward_spread, dull: a rejected group is replaced" in " ".join(capsys.readouterr().err.split())

    own.with_name("broken.py").write_text(BROKEN["raises"][0])
    broken = load_config(config, RLConfig, [f"rollout.filters.1.path={tmp_path}/broken.py:f"])
    with pytest.raises(ConfigError, match=r"rollout\.filters\.1: .*broken\.py:3: ValueError"):
        show_plan(broken, config.stem)


def test_a_digest_of_its_file_is_part_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    inner = {"kind": "python", "path": f"{file}:f"}
    filters = load_filters([{"kind": "not", "filter": inner}, {"kind": "reward_spread"}, inner])
    file.write_text("def f(completions, options):\n    return None\n")
    before = filter_digests(filters)
    assert before.keys() == {"rollout.filters.0.filter.path", "rollout.filters.2.path"}
    file.write_text("def f(completions, options):\n    return 'no'\n")
    after = filter_digests(filters)
    assert all(before[key] != after[key] for key in before)
    file.unlink()
    with pytest.raises(ConfigError, match=r"rollout\.filters\.2\.path: no such file"):
        filter_digests(filters)


def load_filters(filters: Sequence[Mapping[str, object]]) -> tuple[Filter, ...]:
    return RolloutConfig.model_validate({"filters": filters}).filters


def test_a_run_whose_filter_changed_is_another_run(a_run: WriteRun, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def f(completions, options):\n    return None\n")
    rollout = {"filters": [{"kind": "python", "path": f"{own}:f"}], "max_new_tokens": 8, "generations": 4}
    config = a_run(evaluation=None, rollout=rollout)
    train_written(config, WrittenServer((1.0, 0.0) * 4), "training.max_steps=2")
    manifest = json.loads((config.parent / "runs" / "rl" / "manifest.json").read_text())
    assert "rollout.filters.0.path" in json.dumps(manifest)
