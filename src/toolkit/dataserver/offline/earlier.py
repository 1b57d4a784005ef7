"""Completions that were graded before, from a journal or from a file of toolkit-rl-grade."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.core.jsonl import read_jsonl
from toolkit.dataserver.journal.config import JournalConfig
from toolkit.dataserver.journal.database import open_database
from toolkit.dataserver.journal.reader import JournalReader, RowFilter
from toolkit.errors import DataError


@dataclass(frozen=True)
class Earlier:
    """A completion that was graded before, and what it got."""

    place: str
    """Where it stands, as a message names it."""
    sample_id: str
    iteration: int
    completion: str | None
    """None where only a part of it was kept."""
    completion_tokens: int | None
    truncated: bool | None
    reward: float | None
    scores: Mapping[str, float | None]


def read_earlier(source: Path | None, journal: JournalConfig, chosen: RowFilter) -> Iterator[Earlier]:
    """What `source` holds: a `.jsonl` file, an SQLite journal, or, if None, `journal`.

    Raises:
        DataError: it is not there, or is something else.
    """
    if source is not None and source.suffix == ".jsonl":
        return _from_file(source)
    journal = journal if source is None else JournalConfig(path=source)
    if journal.url is None and not journal.path.is_file():
        raise DataError(f"there is no journal {journal.path}; name one, or a .jsonl file that toolkit-rl-grade wrote")
    return _from_journal(journal, chosen)


def _from_journal(journal: JournalConfig, chosen: RowFilter) -> Iterator[Earlier]:
    for row in JournalReader(open_database(journal)).rows(chosen):
        yield Earlier(
            place=f"journal row {row.id}",
            sample_id=row.sample_id,
            iteration=row.iteration,
            completion=row.completion if row.completion_whole else None,
            completion_tokens=row.completion_tokens,
            truncated=row.truncated,
            reward=row.reward,
            scores={name: component.score for name, component in row.components.items()},
        )


def _from_file(path: Path) -> Iterator[Earlier]:
    for line in read_jsonl(path):
        try:
            if line.value is None:
                raise DataError(line.fault)
            value = line.value
            yield Earlier(
                place=f"{path}:{line.number}",
                sample_id=value["sample_id"],
                iteration=value["iteration"],
                completion=value["completion"],
                completion_tokens=value["completion_tokens"],
                truncated=value["truncated"],
                reward=value["reward"],
                scores={name: component["score"] for name, component in value["components"].items()},
            )
        except (DataError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}:{line.number}: not a line that toolkit-rl-grade wrote: {error}") from None
