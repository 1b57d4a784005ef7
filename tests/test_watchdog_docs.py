"""The page on watchdogs lists all of them and no others."""

import re
from pathlib import Path

from posttrain.config.load import load_config
from posttrain.rl.config import RLConfig
from posttrain.rl.watchdogs import rl_watchdogs
from posttrain.sft.train import sft_watchdogs
from posttrain.train.watchdogs import Watchdog, training_watchdogs
from rl.rl_runs import write_run

PAGE = Path(__file__).parents[1] / "docs" / "watchdogs.md"


def watchdogs(folder: Path) -> dict[str, list[Watchdog]]:
    """The watchdogs of each kind of run."""
    rl = load_config(write_run(folder, folder / "model"), RLConfig)
    return {
        "sft": sft_watchdogs(),
        "preferences": training_watchdogs("nothing"),
        "rl": rl_watchdogs(rl),
    }


def test_each_watchdog_is_explained_and_has_advice(tmp_path: Path) -> None:
    names = {each.name for of_run in watchdogs(tmp_path).values() for each in of_run}
    seen, advice = PAGE.read_text().split("## Warnings")[1].split("## What to do")

    for part in (seen, advice):
        assert set(re.findall(r"^\| `(\w+)` \|", part, re.M)) == names


def test_what_the_page_has_seen_in_all_runs_is_looked_for_in_all(tmp_path: Path) -> None:
    in_all = set.intersection(*({each.name for each in of_run} for of_run in watchdogs(tmp_path).values()))
    said = set(re.findall(r"^\| `(\w+)` \|.*\| all \|$", PAGE.read_text(), re.M))

    assert said == {"zero_gradient", "overflowing_gradient"}
    assert said <= in_all
