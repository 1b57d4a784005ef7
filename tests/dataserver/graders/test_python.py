"""A user's own grader: found, imported and checked at startup, and its results are scores or errors."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.load import load_config
from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.base import Abstain, Score
from posttrain.dataserver.graders.catalogue import AnyGrader
from posttrain.dataserver.graders.python import PythonGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import ConfigError, ToolkitError

ITEM = GradeInput("abc", "abc", gold="abc", record={"weight": 0.25})


class OneGrader(StrictModel):
    """A config with a grader in it."""

    grader: AnyGrader


def loaded(folder: Path, section: str) -> PythonGrader:
    """The grader from a config file in that folder."""
    file = folder / "config.yaml"
    file.write_text(f"grader: {{type: python, {section}}}\n")
    grader = load_config(file, OneGrader).grader
    assert isinstance(grader, PythonGrader)
    return grader


def of(folder: Path, code: str, place: str = "mine.py:score", params: str = "{}") -> PythonGrader:
    """A grader made from this code."""
    (folder / place.partition(":")[0]).write_text(code)
    return loaded(folder, f"path: '{place}', params: {params}")


def test_a_function_scores(tmp_path: Path) -> None:
    grader = of(tmp_path, "def score(item):\n    return len(item.answer) / 10")
    grader.load()

    assert grader.score(ITEM) == Score(0.3)


def test_a_function_gets_the_params(tmp_path: Path) -> None:
    code = "def score(item, *, by, add=0.0):\n    return item.record[by] + add"

    assert of(tmp_path, code, params="{by: weight, add: 0.5}").score(ITEM) == Score(0.75)


def test_a_function_can_answer_a_score_with_words_or_abstain(tmp_path: Path) -> None:
    code = """
from posttrain.dataserver.graders.base import Abstain, Score

def score(item):
    if item.gold is None:
        raise Abstain("no gold")
    return Score(1, "well done")
"""
    grader = of(tmp_path, code)

    assert grader.score(ITEM) == Score(1.0, "well done")
    with pytest.raises(Abstain, match="no gold"):
        grader.score(GradeInput("abc", "abc"))


def test_a_class_is_made_once_with_the_params(tmp_path: Path) -> None:
    code = """
class Counting:
    made = 0

    def __init__(self, step):
        Counting.made += 1
        self.step = step
        self.calls = 0

    def score(self, item):
        self.calls += 1
        return self.made * self.calls * self.step
"""
    grader = of(tmp_path, code, "mine.py:Counting", "{step: 0.1}")

    assert [grader.score(ITEM).value for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])


def test_dataclasses_with_postponed_annotations_work(tmp_path: Path) -> None:
    code = """
from __future__ import annotations
import pickle
from dataclasses import dataclass
from typing import ClassVar

@dataclass
class Rule:
    worth: float = 0.5
    kind: ClassVar[str] = "x"

    def score(self, item):
        return pickle.loads(pickle.dumps(self)).worth
"""
    assert of(tmp_path, code, "mine.py:Rule").score(ITEM) == Score(0.5)


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "worths_of_words.py").write_text("WORTH = 0.5")
    code = "import worths_of_words\n\ndef score(item):\n    from worths_of_words import WORTH\n    return WORTH"

    assert of(tmp_path, code).score(ITEM) == Score(0.5)


def test_installed_modules_win_over_neighbours(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise ImportError")
    (tmp_path / "pydantic.py").write_text("raise ImportError")

    assert of(tmp_path, "import json, pydantic\n\ndef score(item):\n    return 1.0").score(ITEM) == Score(1.0)


def test_files_of_one_name_in_two_folders_are_two_graders(tmp_path: Path) -> None:
    graders = []
    for name, worth in (("a", 0.25), ("b", 0.75)):
        (tmp_path / name).mkdir()
        graders.append(of(tmp_path / name, f"def score(item):\n    return {worth}"))

    assert [grader.score(ITEM).value for grader in graders] == [0.25, 0.75]


def test_a_file_may_be_called_like_a_module(tmp_path: Path) -> None:
    assert of(tmp_path, "def score(item):\n    return 1.0", "math.py:score").score(ITEM) == Score(1.0)
    assert sys.modules["math"].__name__ == "math"


def test_what_can_be_imported_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules_for_grading.py").write_text("def half(item):\n    return 0.5")
    monkeypatch.syspath_prepend(tmp_path)
    grader = loaded(tmp_path, "import: 'rules_for_grading:half'")
    grader.load()

    assert grader.score(ITEM) == Score(0.5)


@pytest.mark.parametrize(
    "answer", ["True", "False", "None", "'1'", "float('nan')", "float('inf')", "1.01", "-0.01", "[1]"]
)
def test_an_answer_that_is_no_score_is_an_error(tmp_path: Path, answer: str) -> None:
    with pytest.raises(ValueError, match="not a number from 0 to 1"):
        of(tmp_path, f"def score(item):\n    return {answer}").score(ITEM)


@pytest.mark.parametrize(
    ("code", "place", "params", "message"),
    [
        ("x = 1", "mine.py:score", "{}", "mine.py has no 'score'"),
        ("score = 1", "mine.py:score", "{}", "neither a function nor a class but int"),
        ("def score(", "mine.py:score", "{}", "mine.py cannot be imported: SyntaxError"),
        ("import not_there_at_all", "mine.py:score", "{}", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("import sys\nsys.exit(3)", "mine.py:score", "{}", "cannot be imported: SystemExit: 3"),
        ("def score():\n    pass", "mine.py:score", "{}", "must take one completion"),
        ("def score(a, b):\n    pass", "mine.py:score", "{}", "must take one completion"),
        ("def score(item):\n    pass", "mine.py:score", "{x: 1}", r"and the params \['x'\]"),
        ("async def score(item):\n    pass", "mine.py:score", "{}", "is async"),
        ("class A:\n    pass", "mine.py:A", "{}", "has no method score"),
        ("class A:\n    score = 1", "mine.py:A", "{}", "has no method score"),
        ("class A:\n    def score(self):\n        pass", "mine.py:A", "{}", "must take one completion"),
        ("class A:\n    async def score(self, item):\n        pass", "mine.py:A", "{}", "is async"),
        ("class A:\n    def score(self, item):\n        pass", "mine.py:A", "{x: 1}", r"params \['x'\]: TypeError"),
        ("class A:\n    def __init__(self):\n        1 / 0", "mine.py:A", "{}", "ZeroDivisionError"),
    ],
)
def test_code_that_cannot_score_is_told_at_the_start(
    tmp_path: Path, code: str, place: str, params: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        of(tmp_path, code, place, params).load()


def test_code_that_was_mended_can_be_loaded(tmp_path: Path) -> None:
    grader = of(tmp_path, "1 / 0")
    with pytest.raises(ConfigError):
        grader.load()
    (tmp_path / "mine.py").write_text("def score(item):\n    return 1.0")

    assert grader.score(ITEM) == Score(1.0)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("path: 'not_there.py:score'", "not_there.py"),
        ("import: 'not_there_at_all:score'", "there is no module 'not_there_at_all'"),
        ("import: 'not_there.at_all:score'", "there is no module 'not_there.at_all'"),
        ("import: 'sys:exit'", "module 'sys' has no source file"),
    ],
)
def test_code_that_is_not_there_is_told_at_the_start(tmp_path: Path, section: str, message: str) -> None:
    grader = loaded(tmp_path, section)

    with pytest.raises(ConfigError, match=message):
        grader.load()
    with pytest.raises(ToolkitError, match=message):
        grader.identity()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("params: {}", "give either import"),
        ("import: 'a:b', path: 'a.py:b'", "give either import"),
        ("path: mine.py", "must end with a colon"),
        ("path: ':score'", "must end with a colon"),
        ("path: 'mine.py:a b'", "must end with a colon"),
        ("import: mine", "must end with a colon"),
        ("path: '../mine.py:score'", "is outside of"),
        ("path: '/etc/mine.py:score'", "is outside of"),
        ("path: 'a/../../mine.py:score'", "is outside of"),
        ("path: 'a:b', params: {when: 2020-01-01}", "params"),
    ],
)
def test_a_place_that_cannot_be_meant_is_refused(tmp_path: Path, section: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, section)


def test_a_symbolic_link_leads_nowhere_outside(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "mine.py").write_text("def score(item):\n    return 1.0")
    os.symlink(tmp_path / "mine.py", inside / "mine.py")

    with pytest.raises(ConfigError, match="is outside of"):
        loaded(inside, "path: 'mine.py:score'")


def test_a_folder_that_is_itself_reached_by_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "linked")

    assert of(tmp_path / "linked", "def score(item):\n    return 1.0").score(ITEM) == Score(1.0)


def test_the_identity_changes_with_the_code(tmp_path: Path) -> None:
    grader = of(tmp_path, "def score(item):\n    return 1.0")
    before = grader.identity()
    (tmp_path / "mine.py").write_text("def score(item):\n    return 0.0")

    assert before != grader.identity()
    assert len(before) == 64


def test_a_grader_keeps_its_place_when_it_is_copied_and_sent(tmp_path: Path) -> None:
    import pickle

    grader = of(tmp_path, "def score(item, x):\n    return x", params="{x: 0.5}")
    copies: list[Any] = [
        PythonGrader.model_validate(grader),
        PythonGrader.model_validate(grader.model_dump(by_alias=True)),
        pickle.loads(pickle.dumps(grader)),
    ]

    assert copies == [grader] * 3
    assert [copy.score(ITEM) for copy in copies] == [Score(0.5)] * 3
