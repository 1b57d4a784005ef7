"""toolkit-data run, killed or interrupted at any file operation, goes on where it was and ends with the same files."""

import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from faults.forked import After, Ended, ForkedCommands, Happening
from faults.kills import THOROUGH, may_end, moments
from synthesis.data_cases import DataCase, write_data_case
from synthesis.words_server import words_server


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with words_server() as (_, url):
        yield url


@dataclass(frozen=True)
class Sampling:
    """A case whose answers come from a server."""

    commands: ForkedCommands
    case: DataCase

    def start(self, *happenings: Happening | After) -> Ended:
        """Run the command once."""
        words = ("toolkit-data", "run", self.case.config)
        return self.commands.run(*words, watched=self.case.output, happenings=happenings)


@dataclass(frozen=True)
class Undisturbed:
    """What an undisturbed command left, and how it ended."""

    left: dict[str, bytes]
    ended: Ended


def sampling(commands: ForkedCommands, folder: Path, server: str) -> Sampling:
    folder.mkdir(parents=True, exist_ok=True)
    case = write_data_case(folder, folder / "no-model")
    case.change(model={"url": server, "model": "words", "concurrency": 2}, sample={"n": 2})
    case.change(keep=yaml.safe_load("[{type: sft, path: good.jsonl}, {type: pairs, path: pairs.jsonl}]"))
    return Sampling(commands, case)


@pytest.fixture(scope="session")
def undisturbed(commands: ForkedCommands, server: str, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    left_alone = sampling(commands, tmp_path_factory.mktemp("sampled"), server)
    ended = left_alone.start()
    assert ended.code == 0, ended.said
    return Undisturbed(left_alone.case.files(), ended)


def test_a_sampling_that_is_killed_before_each_file_that_it_writes_goes_on(
    undisturbed: Undisturbed, commands: ForkedCommands, server: str, tmp_path: Path
) -> None:
    killed = sampling(commands, tmp_path / "task", server)
    operations = [*dict.fromkeys(undisturbed.ended.operations)]
    renames = [each for each in operations if each.startswith("rename")]
    # The start of the answers, all answers, grades, the job, two files with their controls, and the ledger.
    assert len(renames) == 9
    unfinished = [each for each in operations if each.startswith("remove") and each.endswith(".partial")]
    assert unfinished  # the answers as they came, once all are in place
    for operation in sorted({*renames, *unfinished}, key=operations.index):
        assert killed.start(Happening(operation)).code == -signal.SIGKILL
    assert killed.start().code == 0
    assert killed.case.files() == undisturbed.left


@pytest.mark.long
def test_wherever_a_sampling_is_killed_it_goes_on(
    undisturbed: Undisturbed, commands: ForkedCommands, server: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(THOROUGH, max_examples=12)
    @given(st.lists(moments(undisturbed.ended), min_size=1, max_size=4))
    def holds(happenings: list[Happening | After]) -> None:
        killed = sampling(commands, tmp_path_factory.mktemp("killed") / "task", server)
        note(f"in {killed.case.folder}")
        for each in happenings:
            ended = killed.start(each)
            assume(each is not happenings[0] or not ended.too_late)
            assert ended.code in {-signal.SIGKILL} | may_end(happenings, each), ended.said
        assert killed.start().code == 0
        assert killed.case.files() == undisturbed.left
        shutil.rmtree(killed.case.folder)

    holds()
