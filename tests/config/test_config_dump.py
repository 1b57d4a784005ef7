"""Dumping a config as YAML that loads back equal."""

from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from sample_config import LengthGrader, MathGrader, Sample, Stage, Training

from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.config.strict import ConfigPath, StrictModel, TextFrom


class Size(Enum):
    BIG = "big"


class Kinds(StrictModel):
    size: Size = Size.BIG
    sizes: dict[Size, int] = {Size.BIG: 1}  # noqa: RUF012  # pydantic copies it
    day: date = date(2024, 1, 2)
    money: Decimal = Decimal("1.10")
    names: frozenset[str] = frozenset({"b", "a"})
    counts: dict[int, float] = Field(default_factory=lambda: {1: 0.5})
    anything: Any = None
    path: ConfigPath = Path("a")


def loaded_back(config: StrictModel, folder: Path) -> StrictModel:
    path = folder / "dumped.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    return load_config(path, type(config))


def test_all_fields_are_written_in_the_order_of_the_classes():
    config = Sample(name="x", data=Path("/d/a.jsonl"), runs=Path("/r"), targets=("q", "v"))
    assert to_yaml(config) == (
        "name: x\n"
        "training:\n"
        "  learning_rate: 0.0002\n"
        "  seed: 0\n"
        "  rows: 16\n"
        "  micro: 4\n"
        "  exact: false\n"
        "stages: []\n"
        "graders: []\n"
        "data: /d/a.jsonl\n"
        "runs: /r\n"
        "targets:\n- q\n- v\n"
        "server:\n"
        "  port: 80\n"
        "  api_key: null\n"
    )


def test_paths_are_absolute_so_that_the_dump_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert f"runs: {tmp_path}/runs\n" in to_yaml(Sample(name="x"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.yaml").write_text("name: x\ndata: ../d.jsonl\n")
    (tmp_path / "b").mkdir()
    config = load_config(Path("a/config.yaml"), Sample)
    assert loaded_back(config, tmp_path / "b") == config


def test_every_kind_of_value_comes_back(tmp_path: Path):
    config = Kinds(anything=TextFrom("x", Path("/a")), path=Path("/a"))
    assert loaded_back(config, tmp_path) == config


def test_equal_lists_are_written_out_without_anchors():
    stage = Stage(name="a", until_step=1, mix={"d": 1.0})
    assert "&" not in to_yaml(Sample(name="x", stages=(stage, stage), targets=("a", "a")))


# No surrogates, which a config cannot contain.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    name=texts,
    rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    seed=st.integers(min_value=0, max_value=2**63 - 1),
    targets=st.one_of(st.sampled_from(["auto", "all"]), st.lists(texts).map(tuple)),
    mix=st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    graders=st.lists(
        st.one_of(
            st.builds(MathGrader, type=st.just("math"), tolerance=st.floats(0, 1)),
            st.builds(LengthGrader, type=st.just("length"), most=st.integers(-(2**63) + 1, 2**63 - 1)),
        ),
        max_size=2,
    ),
)
def test_any_config_comes_back_equal(tmp_path_factory: pytest.TempPathFactory, name, rate, seed, targets, mix, graders):
    config = Sample(
        name=name,
        training=Training(learning_rate=rate, seed=seed),
        stages=(Stage(name="s", until_step=1, mix=mix),),
        graders=tuple(graders),
        runs=Path("/r"),
        targets=targets,
    )
    assert loaded_back(config, tmp_path_factory.getbasetemp()) == config
