"""Held-out rows are never trained on and are the same in every run."""

import random
from pathlib import Path
from typing import Any

import pytest

from dataserver.dataserver_cases import make_config, questions, write_rows
from posttrain.dataserver.data.loading import load_datasets
from posttrain.dataserver.data.samples import Samples
from posttrain.dataserver.data.sampling import Sampler, split_rows
from posttrain.errors import ConfigError


def served(folder: Path, fraction: float | None, seed: int = 0, **section: Any) -> tuple[Sampler, Samples]:
    part = {"validation_fraction": fraction, **section}
    config = make_config(folder, {"a": part, "b": part}, seed=seed, prompts_per_iteration=64)
    datasets = load_datasets(config, lambda line: None)
    sides = split_rows(config, datasets)
    return Sampler(config, sides), Samples(config, datasets, sides)


def asked(one: Sampler, samples: Samples, split: Any, count: int, iteration: int = 0) -> list[str]:
    return [samples.sample(slot).messages[-1].content for slot in one.slots(iteration, 0, count, split)]


def test_what_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        # Every question twice: both copies are in the same split.
        write_rows(tmp_path / f"{name}.jsonl", [*questions(name, 20), *questions(name, 20)])
    one, samples = served(tmp_path, 0.2)
    assert one.validation_size == 16
    held_out = asked(one, samples, "validation", 16)
    trained = {text for iteration in range(10) for text in asked(one, samples, "train", 64, iteration)}
    assert not trained & set(held_out)
    assert trained | set(held_out) == {f"{name} {number}" for name in ("a", "b") for number in range(20)}
    with pytest.raises(ConfigError, match="more than the 16 prompts that the validation split has"):
        one.slots(0, 16, 1, "validation")


def test_the_same_is_held_out_at_every_iteration_whatever_the_order_of_the_lines(tmp_path: Path) -> None:
    rows = {name: questions(name, 50) for name in ("a", "b")}
    held_out = []
    for number in range(3):
        for name in rows:
            random.Random(number).shuffle(rows[name])
            write_rows(tmp_path / f"{name}.jsonl", rows[name])
        one, samples = served(tmp_path, 0.1)
        held_out.append(sorted(asked(one, samples, "validation", 10)))
        assert one.slots(0, 0, 10, "validation") == one.slots(10**9, 0, 10, "validation")
    assert held_out[0] == held_out[1] == held_out[2]
    one, samples = served(tmp_path, 0.1, seed=1)
    assert sorted(asked(one, samples, "validation", 10)) != held_out[0]


def test_the_system_message_of_a_data_set_decides_nothing_about_what_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write_rows(tmp_path / f"{name}.jsonl", questions(name, 50))
    held_out = []
    for number, system in enumerate((None, "Be short.", "Be long.")):
        # As on another machine: nothing is cached.
        monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / f"cache {number}"))
        held_out.append(asked(*served(tmp_path, 0.1, system=system), "validation", 10))
    assert held_out[0] == held_out[1] == held_out[2]


def test_the_first_held_out_prompts_are_of_all_data_sets_in_proportion(tmp_path: Path) -> None:
    # 20 of 40 rows and 5 of 10 are held out: every 5 prompts are 4 of `a` and 1 of `b`.
    for name, count in (("a", 40), ("b", 10)):
        write_rows(tmp_path / f"{name}.jsonl", questions(name, count))
    one, samples = served(tmp_path, 0.5)
    names = [text.split()[0] for text in asked(one, samples, "validation", 25)]
    assert [names[start : start + 5].count("b") for start in range(0, 25, 5)] == [1, 1, 1, 1, 1]


def test_held_out_prompts_are_asked_in_the_order_of_the_hash_that_chose_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rows(tmp_path / f"{name}.jsonl", questions(name, 40))
    few, many = (asked(*served(tmp_path, fraction), "validation", 8) for fraction in (0.1, 0.5))
    # The hash picks the same 4 rows of each data set first, however many are held out.
    assert few == many
    assert sorted(few, key=lambda text: int(text.split()[1])) != few
