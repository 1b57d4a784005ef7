"""Strict models: numbers, immutability and paths."""

import os
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError
from sample_config import Sample, Training

from posttrain.config.schema import sentences
from posttrain.config.strict import ConfigPath, StrictModel, TextFrom


class Numbers(StrictModel):
    whole: int | None = None
    real: float | None = None
    flag: bool | None = None
    reals: dict[str, float] = Field(default_factory=dict)
    wholes: tuple[int, ...] = ()
    rule: Literal["auto"] | float = 1.0
    same: "Numbers | None" = None
    flag_or_count: bool | int = 0
    small: int = Field(default=1, ge=1, le=5)


@pytest.mark.parametrize(
    ("field", "given", "want"),
    [
        ("real", "1e-5", 1e-5),
        ("real", "1E3", 1000.0),
        ("real", 3, 3.0),
        ("whole", "12", 12),
        ("whole", 2.0, 2),
        ("whole", "1e3", 1000),
        ("reals", {"a": "5e-1"}, {"a": 0.5}),
        ("rule", "2e-5", 2e-5),
        ("rule", "auto", "auto"),
        ("flag", True, True),
        ("flag_or_count", True, True),
        ("flag_or_count", 3, 3),
    ],
)
def test_numbers_may_be_written_as_yaml_reads_them(field: str, given: Any, want: Any):
    got = getattr(Numbers.model_validate({field: given}), field)
    assert (got, type(got)) == (want, type(want))


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("whole", True),
        ("real", False),
        ("reals", {"a": True}),
        ("wholes", [1, True]),
        ("rule", True),
        ("same", {"same": {"whole": True}}),
        ("small", True),
        ("whole", 2.5),
        ("whole", "1.5e0"),
        ("whole", "1e400"),
        ("whole", "0xe"),
        ("real", float("nan")),
        ("real", "inf"),
        ("whole", float("inf")),
        ("small", "6e0"),
    ],
)
def test_a_bool_a_fraction_or_an_infinity_is_no_number(field: str, given: Any):
    with pytest.raises(ValidationError):
        Numbers.model_validate({field: given})


def test_a_config_is_frozen_and_takes_no_unknown_key():
    training = Training()
    with pytest.raises(ValidationError):
        training.seed = 1  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Training(sed=1)  # type: ignore[call-arg]


def test_the_sentence_under_a_field_describes_it():
    assert sentences(Training)["seed"] == "Seed of everything."


class Shorter(Training):
    seed: int = 1
    rows: int = 8
    """Rows, fewer."""


def test_a_field_that_is_set_anew_keeps_its_sentence_unless_it_has_another():
    assert {name: sentences(Shorter)[name] for name in ("seed", "rows")} == {
        "seed": "Seed of everything.",
        "rows": "Rows, fewer.",
    }


class Files(StrictModel):
    path: ConfigPath


class Holder(StrictModel):
    files: Files = Files(path=Path("inside"))
    beside: ConfigPath = Path("beside")


def path_of(value: Any, base: Path | None = None) -> Path:
    return Files.model_validate({"path": value}, context={"base_dir": base} if base else None).path


def test_a_path_starts_from_the_folder_of_its_file(tmp_path: Path):
    assert path_of("data/a.jsonl", tmp_path) == tmp_path / "data/a.jsonl"
    assert path_of("../a.jsonl", tmp_path / "configs") == tmp_path / "a.jsonl"
    assert path_of("/etc/a", tmp_path) == Path("/etc/a")


def test_a_path_in_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert path_of("~/a", tmp_path) == Path("/home/ada/a")
    assert path_of("~/a") == Path("/home/ada/a")


def test_a_marked_path_starts_from_the_folder_of_its_mark(tmp_path: Path):
    assert path_of(TextFrom("a", tmp_path), Path("/elsewhere")) == tmp_path / "a"


def test_a_path_given_in_python_stays_as_it_is():
    assert path_of("a/b") == Path("a/b")
    assert path_of(Path("a/b")) == Path("a/b")


def test_a_default_path_starts_from_the_file_even_in_a_default_section(tmp_path: Path):
    holder = Holder.model_validate({}, context={"base_dir": tmp_path})
    assert holder.beside == tmp_path / "beside"
    assert holder.files.path == tmp_path / "inside"


def test_dots_after_a_symbolic_link_keep_their_meaning(tmp_path: Path):
    (tmp_path / "real/configs").mkdir(parents=True)
    os.symlink(tmp_path / "real/configs", tmp_path / "link")
    assert path_of("../data", tmp_path / "link") == tmp_path / "link/../data"
    assert path_of("../data", tmp_path / "real/configs") == tmp_path / "real/data"


@pytest.mark.parametrize("bad", ["", "  ", "a\0b", "~no-such-user-here/a", 5, None, ["a"]])
def test_what_cannot_be_a_path_is_refused(bad: Any, tmp_path: Path):
    with pytest.raises(ValidationError):
        path_of(bad, tmp_path)


def test_marked_text_is_ordinary_text_to_every_other_type():
    x, q, five = (TextFrom(text, Path("/a")) for text in ("x", "q", "5"))
    raw = {"name": x, "targets": [q], "training": {"seed": five}}
    config = Sample.model_validate(raw)
    assert (type(config.name), config.targets, config.training.seed) == (str, ("q",), 5)
