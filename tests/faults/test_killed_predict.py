"""toolkit-predict, killed or interrupted at any point, continues where it was and ends with the same output."""

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from faults.forked import After, Ended, ForkedCommands, Happening, What
from faults.kills import THOROUGH, may_end, moments
from faults.predicting import WORDS, Prediction


@dataclass(frozen=True)
class Undisturbed:
    """What an undisturbed command left, and how it ended."""

    left: dict[str, bytes | None]
    ended: Ended


@pytest.fixture(scope="session")
def undisturbed(commands: ForkedCommands, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    prediction = Prediction(commands, tmp_path_factory.mktemp("predicted"), tiny_model)
    ended = prediction.start()
    assert ended.code == 0, ended.said
    assert len(prediction.answers) == 2 * len(WORDS) * 2
    return Undisturbed(prediction.left, ended)


def test_a_prediction_that_is_killed_again_and_again_goes_on(
    undisturbed: Undisturbed, commands: ForkedCommands, tiny_model: Path, tmp_path: Path
) -> None:
    prediction = Prediction(commands, tmp_path / "task", tiny_model)
    for operation in ("rename out.partial", "write out.partial", "rename out/b.jsonl", "remove out.partial"):
        assert prediction.start(happenings=[Happening(operation)]).code == -signal.SIGKILL
    assert prediction.start().code == 0
    assert prediction.left == undisturbed.left


def test_shards_and_their_joining_go_on_wherever_they_are_killed(
    undisturbed: Undisturbed, commands: ForkedCommands, tiny_model: Path, tmp_path: Path
) -> None:
    prediction = Prediction(commands, tmp_path / "task", tiny_model)
    for number in ("1", "2"):
        for operation in ("rename out.shard-N-of-N", "write out.shard-N-of-N"):
            ended = prediction.start("--shard", f"{number}/2", happenings=[Happening(operation)])
            assert ended.code == -signal.SIGKILL, ended.said
        assert prediction.start("--join").code == 2
        assert prediction.start("--shard", f"{number}/2").code == 0
    for operation in ("rename out/a.jsonl", "rename out/b.jsonl", "remove out.shard-N-of-N"):
        ended = prediction.start("--join", happenings=[Happening(operation)])
        assert ended.code == -signal.SIGKILL, ended.said
    assert prediction.start("--join").code == 0
    assert prediction.left == undisturbed.left


@pytest.mark.long
@pytest.mark.parametrize(("what", "codes"), [("SIGKILL", {-signal.SIGKILL}), ("SIGINT", {130})])
def test_wherever_a_prediction_is_ended_it_goes_on_with_what_it_had(
    what: What,
    codes: set[int],
    undisturbed: Undisturbed,
    commands: ForkedCommands,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    @settings(THOROUGH, max_examples=12)
    @given(st.lists(moments(undisturbed.ended, what), min_size=1, max_size=4))
    def holds(happenings: list[Happening | After]) -> None:
        prediction = Prediction(commands, tmp_path_factory.mktemp("predict") / "task", tiny_model)
        note(f"in {prediction.folder}")
        before: set[bytes] = set()
        for each in happenings:
            ended = prediction.start(happenings=[each])
            assume(each is not happenings[0] or not ended.too_late)
            assert ended.code in codes | may_end(happenings, each), ended.said
            assert before <= prediction.answers
            before = prediction.answers
        prediction.finish_as_told()
        assert prediction.left == undisturbed.left
        shutil.rmtree(prediction.folder)

    holds()
