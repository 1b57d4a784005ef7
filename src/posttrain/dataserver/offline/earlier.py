"""Read previously graded completions from a journal or a file of toolkit-rl-grade."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Engine, func, select

from posttrain.base.files import require_file
from posttrain.base.text import clipped, counted, first_of
from posttrain.data.bad_records import SHOWN_FAULTS
from posttrain.data.readers.json_lines import Line, read_jsonl
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import connected, grades, journal_to_read
from posttrain.dataserver.journal.reader import JournalReader, JournalSummaries, RowFilter
from posttrain.dataserver.journal.records import StoredRow
from posttrain.dataserver.offline.completions import LARGEST_NUMBER, Completion
from posttrain.dataserver.schemas import Component, Status
from posttrain.errors import ConfigError, DataError

_SQLITE = b"SQLite format 3\0"
_SHOWN_RUNS = 10


@dataclass(frozen=True, kw_only=True)
class Earlier(Completion):
    """A previously graded completion and its result."""

    is_whole: bool
    """Whether `text` is all that the model wrote."""
    prompt: str
    """The prompt at that time, as far as it was kept."""
    status: Status
    reward: float | None
    components: Mapping[str, Component]


@contextmanager
def earlier_completions(
    source: Path | None, journal: JournalConfig, chosen: RowFilter
) -> Iterator[tuple[int, Iterator[Earlier]]]:
    """The chosen completions of `source`, an SQLite journal or a file of graded completions; of `journal` if None.

    Yields the number of completions, and an iterator over them in the order in which they were graded.

    Raises:
        DataError: the source does not exist or is something else, or it holds no chosen completion.
        ConfigError: the journal has another version, or `chosen` names a run but the source is a file.
        ServerError: PostgreSQL cannot be reached.
    """
    if source is not None and not _is_sqlite(source):
        if chosen.run_id is not None:
            raise ConfigError(f"--run: only a journal has runs, and {source} is not one; leave --run out")
        yield _count_lines(source, chosen), _from_file(source, chosen)
        return
    with journal_to_read(journal if source is None else JournalConfig(path=source)) as engine:
        query = select(func.count(), func.max(grades.c.id)).where(*chosen.conditions())
        with connected(engine, "graded completions cannot be counted") as connection:
            # A server may be adding rows: those added after this moment are left out.
            count, newest = connection.execute(query).one()
        if not count:
            raise DataError(_nothing_chosen(engine))
        yield count, _from_journal(engine, chosen, newest)


def _is_sqlite(path: Path) -> bool:
    require_file(path)
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _nothing_chosen(engine: Engine) -> str:
    runs = [f"{run.run_id!r} ({counted(run.rows, 'completion')})" for run in JournalSummaries(engine).runs()]
    if not runs:
        return "the journal contains no completions"
    return f"the journal contains no such completions; its runs are {first_of(runs, _SHOWN_RUNS)}"


def _from_journal(engine: Engine, chosen: RowFilter, newest: int) -> Iterator[Earlier]:
    for row in takewhile(lambda row: row.id <= newest, JournalReader(engine).rows(chosen)):
        yield _earlier(row, f"journal row {row.id}", row.id, row.completion_whole)


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
    completion_tokens: int | None = Field(default=None, ge=0, le=LARGEST_NUMBER)
    truncated: bool | None = None


def _count_lines(path: Path, chosen: RowFilter) -> int:
    """How many lines are chosen; DataError if toolkit-rl-grade did not write some of them, or if none is chosen."""
    count, fault_count, first_faults = 0, 0, list[str]()
    for line in read_jsonl(path):
        try:
            count += _is_chosen(_graded_line(line), chosen)
        except DataError as error:
            fault_count += 1
            if fault_count <= SHOWN_FAULTS:
                first_faults.append(f"  {path}:{line.number}: {clipped(str(error))}")
    if fault_count:
        more = [f"  ... and {fault_count - SHOWN_FAULTS:,} more"] if fault_count > SHOWN_FAULTS else []
        raise DataError("\n".join([f"{path} was not written by toolkit-rl-grade:", *first_faults, *more]))
    if not count:
        raise DataError(f"{path} contains no such completions")
    return count


def _from_file(path: Path, chosen: RowFilter) -> Iterator[Earlier]:
    for line in read_jsonl(path):
        graded = _graded_line(line)
        if _is_chosen(graded, chosen):
            yield _earlier(graded, f"{path}:{line.number}", line.number, is_whole=True)


def _graded_line(line: Line) -> _GradedLine:
    if line.value is None:
        raise DataError(line.fault)
    try:
        return _GradedLine.model_validate(line.value)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _is_chosen(line: _GradedLine, chosen: RowFilter) -> bool:
    return (
        chosen.dataset in (None, line.dataset)
        and chosen.status in (None, line.status)
        and (chosen.first_iteration is None or line.iteration >= chosen.first_iteration)
        and (chosen.last_iteration is None or line.iteration <= chosen.last_iteration)
    )


def _earlier(kept: StoredRow | _GradedLine, place: str, number: int, is_whole: bool) -> Earlier:
    return Earlier(
        place=place,
        number=number,
        sample_id=kept.sample_id,
        iteration=kept.iteration,
        text=kept.completion,
        is_whole=is_whole,
        prompt=kept.prompt,
        completion_tokens=kept.completion_tokens,
        truncated=kept.truncated,
        status=kept.status,
        reward=kept.reward,
        components=kept.components,
    )
