"""Completions that were graded before, from a journal or from a file of toolkit-rl-grade."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Engine, func, select

from posttrain.base.files import require_file
from posttrain.data.json_lines import Line, read_jsonl
from posttrain.data.sources import SHOWN_FAULTS, clipped
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import connected
from posttrain.dataserver.journal.reader import JournalReader, RowFilter
from posttrain.dataserver.journal.summaries import JournalSummaries
from posttrain.dataserver.journal.tables import grades
from posttrain.dataserver.offline.completion import Completion
from posttrain.dataserver.offline.journals import journal_to_read
from posttrain.dataserver.offline.wording import counted
from posttrain.dataserver.schemas import Component, Status
from posttrain.errors import ConfigError, DataError

_SQLITE = b"SQLite format 3\0"
_SHOWN_RUNS = 10


@dataclass(frozen=True, kw_only=True)
class Earlier(Completion):
    """A completion that was graded before, and what it got."""

    is_whole: bool
    """Whether `text` is all that the model wrote."""
    prompt: str
    """What the row asked, as far as it was kept."""
    status: Status
    reward: float | None
    components: Mapping[str, Component]


class EarlierCompletions(Protocol):
    """Completions that were graded before."""

    count: int

    def __iter__(self) -> Iterator[Earlier]:
        """All of them, in the order in which they were graded."""
        ...


@contextmanager
def earlier_completions(source: Path | None, journal: JournalConfig, chosen: RowFilter) -> Iterator[EarlierCompletions]:
    """What was chosen of `source`: an SQLite journal, or a file of graded completions; or of `journal`, if None.

    Raises:
        DataError: it is not there, is something else, or nothing was chosen.
        ConfigError: the journal is of another version, or a file is asked for a run.
        ServerError: PostgreSQL cannot be reached.
    """
    if source is not None and not _is_sqlite(source):
        yield _GradedFile(source, chosen)
        return
    with journal_to_read(journal if source is None else JournalConfig(path=source)) as engine:
        yield _Journal(engine, chosen)


class _Journal:
    def __init__(self, engine: Engine, chosen: RowFilter) -> None:
        self._reader = JournalReader(engine)
        self._chosen = chosen
        query = select(func.count(), func.max(grades.c.id)).where(*chosen.conditions())
        with connected(engine, "graded completions cannot be counted") as connection:
            # A server may be adding to it: what comes after this moment is not meant.
            self.count, self._newest = connection.execute(query).one()
        if not self.count:
            raise DataError(_nothing_chosen(engine))

    def __iter__(self) -> Iterator[Earlier]:
        for row in takewhile(lambda row: row.id <= self._newest, self._reader.rows(self._chosen)):
            yield Earlier(
                place=f"journal row {row.id}",
                number=row.id,
                sample_id=row.sample_id,
                iteration=row.iteration,
                text=row.completion,
                is_whole=row.completion_whole,
                prompt=row.prompt,
                completion_tokens=row.completion_tokens,
                truncated=row.truncated,
                status=row.status,
                reward=row.reward,
                components=row.components,
            )


def _nothing_chosen(engine: Engine) -> str:
    runs = JournalSummaries(engine).runs()
    if not runs:
        return "the journal holds no completions"
    shown = ", ".join(f"{run.run_id!r} ({counted(run.rows, 'completion')})" for run in runs[:_SHOWN_RUNS])
    more = f" and {len(runs) - _SHOWN_RUNS} more" if len(runs) > _SHOWN_RUNS else ""
    return f"the journal holds no such completions; its runs are {shown}{more}"


class _GradedLine(BaseModel):
    """What is read of a line of toolkit-rl-grade."""

    model_config = ConfigDict(strict=True)

    dataset: str
    sample_id: str
    iteration: int = Field(ge=0)
    status: Status
    reward: float | None
    components: dict[str, Component]
    prompt: str
    completion: str
    completion_tokens: int | None = Field(default=None, ge=0)
    truncated: bool | None = None


class _GradedFile:
    def __init__(self, path: Path, chosen: RowFilter) -> None:
        if chosen.run_id is not None:
            raise ConfigError(f"--run: {path} tells no runs, as a journal does; leave it out")
        self._path = path
        self._chosen = chosen
        self.count = 0
        faults: list[str] = []
        fault_count = 0
        for line in read_jsonl(path):
            try:
                self.count += self._is_chosen(_graded_line(line))
            except DataError as error:
                fault_count += 1
                faults += [f"  {path}:{line.number}: {clipped(str(error))}"] if fault_count <= SHOWN_FAULTS else []
        if faults:
            more = [f"  ... and {fault_count - SHOWN_FAULTS:,} more"] if fault_count > SHOWN_FAULTS else []
            raise DataError("\n".join([f"{path} is no file that toolkit-rl-grade wrote:", *faults, *more]))
        if not self.count:
            raise DataError(f"{path} holds no such completions")

    def __iter__(self) -> Iterator[Earlier]:
        for line in read_jsonl(self._path):
            graded = _graded_line(line)
            if self._is_chosen(graded):
                yield Earlier(
                    place=f"{self._path}:{line.number}",
                    number=line.number,
                    sample_id=graded.sample_id,
                    iteration=graded.iteration,
                    text=graded.completion,
                    is_whole=True,
                    prompt=graded.prompt,
                    completion_tokens=graded.completion_tokens,
                    truncated=graded.truncated,
                    status=graded.status,
                    reward=graded.reward,
                    components=graded.components,
                )

    def _is_chosen(self, line: _GradedLine) -> bool:
        chosen = self._chosen
        return (
            chosen.dataset in (None, line.dataset)
            and chosen.status in (None, line.status)
            and (chosen.first_iteration is None or line.iteration >= chosen.first_iteration)
            and (chosen.last_iteration is None or line.iteration <= chosen.last_iteration)
        )


def _graded_line(line: Line) -> _GradedLine:
    if line.value is None:
        raise DataError(line.fault)
    try:
        return _GradedLine.model_validate(line.value)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _is_sqlite(path: Path) -> bool:
    require_file(path)
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE
