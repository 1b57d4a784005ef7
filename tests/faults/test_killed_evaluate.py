"""toolkit-eval, killed or interrupted at any point, asks only what is missing and ends with the same files."""

import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from faults.evaluating import QUESTIONS, Evaluation
from faults.forked import After, Ended, ForkedCommands, Happening, What
from faults.kills import THOROUGH, may_end, moments
from sharp_model import write_sharp_model

pytestmark = pytest.mark.long  # each command starts two engines; tests/evaluate has a short test of one kill


@dataclass(frozen=True)
class Undisturbed:
    """What an undisturbed command left, and how it ended."""

    left: dict[str, bytes | None]
    ended: Ended


@pytest.fixture(scope="session")
def models(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    return [tiny_model, write_sharp_model(tiny_model, tmp_path_factory.mktemp("models") / "sharp")]


@pytest.fixture(scope="session")
def undisturbed(
    commands: ForkedCommands, models: Sequence[Path], tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    evaluation = Evaluation(commands, tmp_path_factory.mktemp("evaluated") / "task", models)
    ended = evaluation.start()
    assert ended.code == 0, ended.said
    assert len(evaluation.answers) == 2 * len(QUESTIONS) * 2
    return Undisturbed(evaluation.left, ended)


def test_an_evaluation_that_is_killed_again_and_again_goes_on(
    undisturbed: Undisturbed, commands: ForkedCommands, models: Sequence[Path], tmp_path: Path
) -> None:
    evaluation = Evaluation(commands, tmp_path / "task", models)
    operations = list(dict.fromkeys(undisturbed.ended.operations))
    before: set[bytes] = set()
    for words in (".partial", "kept/grades", "kept/logprobs", "results.json", "report.html"):
        operation = next(each for each in operations if words in each and not each.startswith(("open", "mkdir")))
        assert evaluation.start(happenings=[Happening(operation)]).code == -signal.SIGKILL
        assert before <= evaluation.answers
        before = evaluation.answers
    assert evaluation.start().code == 0
    assert evaluation.left == undisturbed.left


@pytest.mark.parametrize(("what", "codes"), [("SIGKILL", {-signal.SIGKILL}), ("SIGINT", {130})])
def test_wherever_an_evaluation_is_ended_it_goes_on_with_what_it_had(
    what: What,
    codes: set[int],
    undisturbed: Undisturbed,
    commands: ForkedCommands,
    models: Sequence[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    @settings(THOROUGH, max_examples=4)
    @given(st.lists(moments(undisturbed.ended, what), min_size=1, max_size=3))
    def holds(happenings: list[Happening | After]) -> None:
        evaluation = Evaluation(commands, tmp_path_factory.mktemp("evaluate") / "task", models)
        note(f"in {evaluation.folder}")
        before: set[bytes] = set()
        for each in happenings:
            ended = evaluation.start(happenings=[each])
            assume(each is not happenings[0] or not ended.too_late)
            assert ended.code in codes | may_end(happenings, each), ended.said
            assert before <= evaluation.answers
            before = evaluation.answers
        assert evaluation.start().code == 0
        assert evaluation.left == undisturbed.left
        shutil.rmtree(evaluation.folder)

    holds()
