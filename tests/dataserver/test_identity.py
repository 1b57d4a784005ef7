"""Equal config ids give equal prompts and rewards: what changes either changes the id, and nothing else does."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dataserver.dataserver_cases import make_config, questions, write_rows
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.loading import load_datasets
from posttrain.dataserver.grading.questions import graders_in_use, own_plan
from posttrain.dataserver.runtime import config_id

GRADERS = {"cap": {"type": "completion_length_cap", "max_tokens": 9}}


def identity(config: DataserverConfig) -> str:
    return config_id(config, load_datasets(config, lambda line: None), graders_in_use(config))


def configured(folder: Path, section: Mapping[str, Any] | None = None, **keys: Any) -> DataserverConfig:
    return make_config(folder, {"sums": {"gates": ["cap"], **(section or {})}}, **{"graders": GRADERS, **keys})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "sums.jsonl", questions("sums", 3))
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        {"listen": {"port": 1, "log": "json"}},
        {"limits": {"workers": 1, "grader_seconds": 1}},
        {"journal": {"enabled": False}},
        {"graders": {**GRADERS, "unused": {"type": "json_valid"}}},
    ],
)
def test_where_and_how_it_is_served_does_not_count(change: dict[str, Any], folder: Path) -> None:
    assert identity(configured(folder, **change)) == identity(configured(folder))


def test_the_order_of_the_graders_counts_neither_in_the_id_nor_in_the_rewards(folder: Path) -> None:
    weights = {"string_exact": 1, "contains": 0.2, "cap": 0}
    one, other = (
        configured(folder, {"graders": dict(order)}) for order in (weights.items(), reversed(weights.items()))
    )
    assert identity(one) == identity(other)
    assert own_plan(one, "sums").graders == own_plan(other, "sums").graders


def test_the_order_of_the_data_sets_counts_since_it_is_that_of_the_held_out_rows(folder: Path) -> None:
    write_rows(folder / "more.jsonl", questions("more", 3))
    one, other = (make_config(folder, {name: {} for name in names}) for names in (("sums", "more"), ("more", "sums")))
    assert identity(one) != identity(other)


def test_neither_folder_nor_name_of_the_data_count(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "numbers.jsonl").write_bytes((folder / "sums.jsonl").read_bytes())
    moved = configured(tmp_path / "elsewhere", {"path": "numbers.jsonl"})
    assert identity(moved) == identity(configured(folder))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"prompts_per_iteration": 9},
        {"after_last_stage": "refuse"},
        {"stages": [{"name": "all", "until_step": 11, "mix": {"sums": 1}}]},
        {
            "stages": [
                {"name": "all", "until_step": 10, "mix": {"sums": 1}, "grading": {"sums": {"graders": {"contains": 1}}}}
            ]
        },
        {"graders": {"cap": {**GRADERS["cap"], "max_tokens": 8}}},
        {"section": {"graders": {"string_exact": 1, "contains": 1}}},
        {"section": {"gates": []}},
        {"section": {"on_missing_score": "zero"}},
        {"section": {"system": "Be short."}},
        {"section": {"reasoning": {}}},
        {"section": {"gold": {"extract": "last_number"}}},
        {"section": {"validation_fraction": 0.4}},
        {"section": {"strip_tags": ["think"]}},
    ],
    ids=str,
)
def test_what_decides_prompts_or_rewards_counts(change: dict[str, Any], folder: Path) -> None:
    assert identity(configured(folder, **change)) != identity(configured(folder))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "sums 3", "answer": "2"},
        {"prompt": "sums 2", "answer": "3"},
        # A grader may read any column.
        {"prompt": "sums 2", "answer": "2", "level": 1},
    ],
)
def test_every_column_of_every_row_counts(row: dict[str, Any], folder: Path) -> None:
    before = identity(configured(folder))
    write_rows(folder / "sums.jsonl", [*questions("sums", 2), row])
    assert identity(configured(folder)) != before


CODE = """
def first(item):
    return 1.0

def second(item):
    return 0.0
"""

WITH_CODE = """\
datasets: {sums: {path: sums.jsonl, graders: {own: 1}}}
graders: {own: {type: python, path: "own.py:first"}}
stages: [{name: all, until_step: 1, mix: {sums: 1}}]
"""


def write_with_code(folder: Path, code: str) -> Path:
    folder.mkdir()
    write_rows(folder / "sums.jsonl", questions("sums", 3))
    (folder / "own.py").write_text(code)
    (folder / "run.yaml").write_text(WITH_CODE)
    return folder / "run.yaml"


def test_code_of_the_user_counts_by_its_text_and_its_name_and_not_by_its_folder(tmp_path: Path) -> None:
    here, there = (write_with_code(tmp_path / name, CODE) for name in ("here", "there"))
    changed = write_with_code(tmp_path / "changed", CODE + "\n")
    own = identity(load_config(here, DataserverConfig))
    assert identity(load_config(there, DataserverConfig)) == own
    assert identity(load_config(changed, DataserverConfig)) != own
    renamed = load_config(here, DataserverConfig, ["graders.own.path=" + str(here.parent / "own.py:second")])
    assert identity(renamed) != own


_TELL = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from test_identity import configured, identity
print(identity(configured(Path(sys.argv[3]))))
"""


def test_the_id_does_not_depend_on_the_process(folder: Path) -> None:
    here = Path(__file__).parent
    told = subprocess.run(
        [sys.executable, "-c", _TELL, here, here.parent, folder],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert told[-1] == identity(configured(folder))
