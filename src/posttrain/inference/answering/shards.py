"""Divide rows among machines: each answers one shard of them, into a file of its own beside the output.

A shard is made of whole batches of those that one process would make. What rounding does to an answer depends on its
batch, so the answers of all shards together are those of one process, bit for bit.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import ConfigError


@dataclass(frozen=True)
class Shard:
    """The `number`-th, from 1, of `count` shares of the rows."""

    number: int
    count: int

    @classmethod
    def chosen(cls, text: str | None, *, join: bool) -> "Shard | None":
        """Read `2/8`; ConfigError if it is something else, or if shards are to be joined as well."""
        if text is None:
            return None
        if join:
            raise ConfigError("--shard answers a part of the rows, and --join joins all of them; give one of the two")
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text, re.ASCII)
        shard = cls(*map(int, found.groups())) if found else None
        if shard is None or not 1 <= shard.number <= shard.count:
            raise ConfigError(f"--shard {text}: give its number and how many there are, 1/8 to 8/8 for eight machines")
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def file_of(self, output: Path) -> Path:
        """Where the answers of this shard are kept until all shards are joined."""
        return output.with_name(f"{output.name}.shard-{self.number}-of-{self.count}")

    def places(self, groups: Sequence[Sequence[int]]) -> list[int]:
        """The rows of this shard, in the order of the input.

        Groups are dealt in turn: if they are ordered by length, shards get equally long ones.
        """
        return sorted(place for group in groups[self.number - 1 :: self.count] for place in group)


def shards_beside(output: Path) -> list[Shard]:
    """The shards of `output` that have a file, in order."""
    name = re.compile(rf"{re.escape(output.name)}\.shard-([1-9][0-9]*)-of-([1-9][0-9]*)", re.ASCII)
    files = output.parent.iterdir() if output.parent.is_dir() else ()
    found = [Shard(*map(int, match.groups())) for each in files if (match := name.fullmatch(each.name))]
    return sorted(found, key=lambda shard: (shard.count, shard.number))
