"""Groups of rollouts kept on disk, with a log of what became of them that can be wound back to any checkpoint.

    RUN/replay/
        g000012.safetensors, g000012.json   the groups of generation 12 that were stored, never changed
        index.sqlite                        events: what became of a group, and at which step

The state after s optimizer steps is a fold of the events until then, so a resumed run deletes the later ones and goes
on as it would have. One process owns the store.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from posttrain.base.text import as_shown
from posttrain.errors import DataError
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.selection import Place
from posttrain.rl.rollout.store.files import read_rollouts, write_rollouts

INDEX = "index.sqlite"
_REMEMBERED_STATES = 16

_TABLE = """
create table if not exists events (
    number integer primary key autoincrement,
    step integer not null,
    kind text not null,
    generation integer not null,
    slot integer not null,
    attempt integer not null,
    entry text
)
"""


class GroupKey(NamedTuple):
    """Identifies a group of a run; `attempt` is 0 for the curriculum's own row."""

    generation: int
    slot: int
    attempt: int


@dataclass(frozen=True)
class Entry:
    """What is known of a stored group without reading it.

    Attributes:
        sample_id: of its prompt.
        version: optimizer steps behind the oldest weights that sampled a token of it.
        mean_reward: over its rollouts that have a reward.
        graded_by: identifies the graders and their weights; rewards of different ones cannot be compared.
        size: bytes of its tokens and texts.
        uses: how often it was used so far.
        is_held: whether a generation that is under way may use it.
    """

    key: GroupKey
    sample_id: str
    dataset: str
    version: int
    mean_reward: float
    graded_by: str
    size: int
    uses: int = 0
    is_held: bool = False


State = dict[GroupKey, Entry]


@dataclass(frozen=True)
class Event:
    """A change of the state; `step` is the number of optimizer steps that are finished once it counts."""

    step: int
    kind: Literal["stored", "held", "released", "used", "evicted"]
    key: GroupKey
    entry: Entry | None = None


def fold(events: Iterable[Event], start: State | None = None) -> State:
    """The state after these events, in their order, from a state that stays as it is, or from nothing."""
    state = dict(start or {})
    for event in events:
        if event.kind == "stored":
            assert event.entry is not None
            state[event.key] = event.entry
        elif event.kind == "evicted":
            del state[event.key]
        else:
            entry = state[event.key]
            uses = entry.uses + (event.kind == "used")
            state[event.key] = replace(entry, uses=uses, is_held=event.kind == "held")
    return state


class RolloutStore:
    """The store in a folder. `step` is always the index of the optimizer step being trained, from 0."""

    def __init__(self, folder: Path) -> None:
        """Open or create it; DataError if its index is damaged."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with self._explained():
            self._index = sqlite3.connect(folder / INDEX, isolation_level=None)
            self._index.execute(_TABLE)
        self._read = lru_cache(maxsize=4)(read_rollouts)
        # By finished steps: the number of the last event that was folded, and the state.
        self._states: dict[int, tuple[int, State]] = {}

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def store(
        self, step: int, generation: int, groups: Mapping[Place, Sequence[Rollout]], graded_by: Mapping[str, str]
    ) -> list[GroupKey]:
        """Keep groups of a generation, each with at least one reward; returns their keys.

        Args:
            groups: all groups of the generation that are to be kept, with log-probabilities.
            graded_by: for each data set, what identifies its graders; see `Entry`.
        """
        if not groups:
            return []
        if any(each.logprobs is None for group in groups.values() for each in group):
            raise ValueError("a rollout without log-probabilities cannot be corrected later, so it cannot be stored")
        if self._has_stored(generation):
            raise ValueError(f"generation {generation} was stored before, and its file never changes")
        kept, name = dict(sorted(groups.items())), _name(generation)
        order = [[place.attempt, place.slot, len(group)] for place, group in kept.items()]
        facts = {"generation": generation, "groups": order}
        write_rollouts(self._folder, name, [each for group in kept.values() for each in group], facts)
        self._read.cache_clear()
        entries = [
            _entry(GroupKey(generation, place.slot, place.attempt), group, graded_by) for place, group in kept.items()
        ]
        self._append([Event(step + 1, "stored", entry.key, entry) for entry in entries])
        return [entry.key for entry in entries]

    def held(self, step: int, keys: Iterable[GroupKey]) -> None:
        """Record that a generation begun in an optimizer step may use these groups; no other one may meanwhile."""
        self._append([Event(step + 1, "held", key) for key in self._there(step, keys)])

    def released(self, step: int, keys: Iterable[GroupKey]) -> None:
        """Record that the generation that held these groups does not use them."""
        self._append([Event(step + 1, "released", key) for key in self._there(step, keys)])

    def used(self, step: int, keys: Iterable[GroupKey]) -> None:
        """Record that these groups are used by an optimizer step, and no longer held."""
        self._append([Event(step + 1, "used", key) for key in self._there(step, keys)])

    def evicted(self, step: int, keys: Iterable[GroupKey]) -> None:
        """Record that these groups are not used after an optimizer step."""
        self._append([Event(step + 1, "evicted", key) for key in self._there(step, keys)])

    def events(self, finished: int, after: int = 0) -> Iterator[tuple[int, Event]]:
        """The events of the first `finished` optimizer steps after event number `after`, in order, with their numbers.

        Steps never fall, so these are all events up to some number.
        """
        with self._explained():
            query = "select * from events where number > ? order by number"
            for number, step, kind, *key, entry in self._index.execute(query, (after,)):
                if step > finished:
                    return
                known = json.loads(entry) if entry else None
                of = GroupKey(*key)
                yield number, Event(step, kind, of, None if known is None else Entry(**{**known, "key": of}))

    def state(self, finished: int) -> State:
        """The groups that can be used after `finished` optimizer steps."""
        earlier = max((steps for steps in self._states if steps <= finished), default=None)
        last, start = (0, {}) if earlier is None else self._states[earlier]
        new = list(self.events(finished, last))
        state = fold((event for _, event in new), start)
        self._states.pop(finished, None)
        self._states[finished] = (new[-1][0] if new else last, state)
        if len(self._states) > _REMEMBERED_STATES:
            del self._states[next(iter(self._states))]  # the one that was asked for longest ago
        return state

    def rollouts(self, key: GroupKey) -> list[Rollout]:
        """A group's rollouts; DataError if its file is missing or damaged."""
        rollouts, facts = self._read(self._folder, _name(key.generation))
        found = iter(rollouts)
        for attempt, slot, count in facts["groups"]:
            group = list(islice(found, count))
            if (attempt, slot) == (key.attempt, key.slot):
                return group
        raise DataError(f"{as_shown(self._folder / _name(key.generation))}: it has no group of slot {key.slot}")

    def remove_files(self, finished: Iterable[int]) -> None:
        """Remove the files of generations of which no group can be used after any of these numbers of steps.

        Args:
            finished: the optimizer steps of every checkpoint that is kept, and the present one.
        """
        needed = {key.generation for steps in finished for key in self.state(steps)}
        for file in [*self._folder.glob("g*.json"), *self._folder.glob("g*.safetensors")]:
            if file.stem[1:].isdecimal() and int(file.stem[1:]) not in needed:
                file.unlink(missing_ok=True)

    def rewind(self, finished: int) -> None:
        """Forget what happened after `finished` optimizer steps."""
        with self._explained():
            self._index.execute("delete from events where step > ?", (finished,))
        self._read.cache_clear()
        self._states.clear()

    def _has_stored(self, generation: int) -> bool:
        with self._explained():
            found = self._index.execute("select 1 from events where generation = ? limit 1", (generation,))
            return found.fetchone() is not None

    def _there(self, step: int, keys: Iterable[GroupKey]) -> list[GroupKey]:
        """The keys; ValueError if a group is not there any more, since no state would follow from such an event."""
        keys, state = list(keys), self.state(step + 1)
        if unknown := [key for key in keys if key not in state]:
            raise ValueError(f"{unknown[0]} is not stored, or was evicted")
        return keys

    def _append(self, events: Sequence[Event]) -> None:
        rows = [
            (each.step, each.kind, *each.key, None if each.entry is None else json.dumps(asdict(each.entry)))
            for each in events
        ]
        with self._explained():
            last = self._index.execute("select max(step) from events").fetchone()[0] or 0
            if any(row[0] < last for row in rows):
                raise ValueError(f"an event of an earlier step than {last}, which was recorded already")
            self._index.execute("begin")
            command = "insert into events (step, kind, generation, slot, attempt, entry) values (?, ?, ?, ?, ?, ?)"
            self._index.executemany(command, rows)
            self._index.execute("commit")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise DataError(
                f"{as_shown(self._folder / INDEX)}: {error}; if the disk is not full, the file is damaged: restore "
                "it, or start the run again with --overwrite"
            ) from error


def _entry(key: GroupKey, group: Sequence[Rollout], graded_by: Mapping[str, str]) -> Entry:
    dataset = group[0].prompt.dataset
    return Entry(
        key=key,
        sample_id=group[0].prompt.sample_id,
        dataset=dataset,
        version=min((int(each.versions.min()) for each in group if each.tokens), default=0),
        mean_reward=fmean(each.reward for each in group if each.reward is not None),
        graded_by=graded_by[dataset],
        size=_size(group),
    )


def _size(group: Sequence[Rollout]) -> int:
    """Bytes of a group's tokens and texts: not of its files, whose length depends on how long graders took."""
    prompt = group[0].prompt
    texts = [prompt.text, *(each.text for each in group)]
    arrays = [array for each in group for array in (each.ids, each.mask, each.versions, each.logprobs)]
    return (
        8 * len(prompt.ids)
        + sum(len(text.encode(errors="replace")) for text in texts)
        + sum(array.nbytes for array in arrays if array is not None)
    )


def _name(generation: int) -> str:
    return f"g{generation:06d}"
