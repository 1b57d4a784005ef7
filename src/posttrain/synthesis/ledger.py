"""What became of every prompt and every answer, in numbers that add up."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from pydantic_core import to_jsonable_python

from posttrain.synthesis.cleaning import LeftOut
from posttrain.synthesis.config import control_name
from posttrain.synthesis.lengths import Lengths
from posttrain.synthesis.selection import Outcome, Rewards, Sort

if TYPE_CHECKING:
    from rich.table import Table

_PROMPTS = ("asked", "contaminated", "duplicate", "unusable")


def _zeros(keys: Iterable[Any]) -> Counter[Any]:
    return Counter(dict.fromkeys(keys, 0))


@dataclass
class FileLedger:
    """What became of the asked prompts in one kept file.

    Attributes:
        prompts: number of asked prompts by outcome; together they are all of them.
        rows: number of rows that were chosen, which are `duplicate` or `kept`.
        duplicates: the rows that repeat an earlier one.
        lengths: of the answers of kept rows, in characters, by their column, such as `chosen`.
        control_lengths: the same for the control.
    """

    prompts: Counter[Outcome] = field(default_factory=lambda: _zeros(get_args(Outcome)))
    rows: Counter[str] = field(default_factory=lambda: _zeros(("chosen", "duplicate", "kept")))
    duplicates: Sequence[LeftOut] = ()
    lengths: dict[str, Lengths | None] = field(default_factory=dict)
    control_lengths: dict[str, Lengths | None] = field(default_factory=dict)


@dataclass
class Ledger:
    """What became of all prompts and answers.

    Attributes:
        prompts: number of prompts that were read, which are `contaminated`, `duplicate`, `unusable` (they cannot be
            asked) or `asked`.
        rewards: number of asked prompts by what their graded answers have in common.
        answers: number of answers that were asked for, which are whole, cut, ungraded, empty or repeated.
        contaminated, duplicates: the prompts that were not asked, with both places.
        tokens: `asked` counts a prompt once for each of its answers; None where a server does not tell.
        seconds: of this call.
    """

    prompts: Counter[str] = field(default_factory=lambda: _zeros(("read", *_PROMPTS)))
    rewards: Counter[Rewards] = field(default_factory=lambda: _zeros(get_args(Rewards)))
    answers: Counter[str] = field(default_factory=lambda: _zeros(("asked", *get_args(Sort))))
    files: dict[str, FileLedger] = field(default_factory=dict)
    contaminated: Sequence[LeftOut] = ()
    duplicates: Sequence[LeftOut] = ()
    tokens: dict[str, int | None] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The ledger for ledger.json."""
        return to_jsonable_python(self)

    def show(self) -> None:
        """Print the ledger."""
        from posttrain.base.console import console

        for table in (self._counts(), self._kept(), self._lengths()):
            console.print(table, soft_wrap=False)
        spent = [f"{name} {number:,} tokens" for name, number in self.tokens.items() if number is not None]
        spent += [f"{name} {seconds:,.1f} s" for name, seconds in self.seconds.items()]
        console.print(", ".join(spent))

    def _counts(self) -> "Table":
        from posttrain.base.console import new_table

        table = new_table("Prompts and answers", "", "number", "of which", words=("of which",))
        table.add_row("prompts read", f"{self.prompts['read']:,}", _listed(self.prompts, _PROMPTS))
        table.add_row("prompts asked", f"{self.prompts['asked']:,}", _listed(self.rewards, get_args(Rewards)))
        table.add_row("answers", f"{self.answers['asked']:,}", _listed(self.answers, get_args(Sort)))
        return table

    def _kept(self) -> "Table":
        from posttrain.base.console import new_table

        others = "other prompts"
        table = new_table("Kept", "file", "rows", "prompts", others, "duplicate rows", words=(others,))
        for path, each in self.files.items():
            why = _listed(each.prompts, [outcome for outcome in get_args(Outcome) if outcome != "kept"])
            numbers = (each.rows["kept"], each.prompts["kept"], each.rows["duplicate"])
            rows, prompts, duplicate = (f"{number:,}" for number in numbers)
            table.add_row(path, rows, prompts, why, duplicate)
        return table

    def _lengths(self) -> "Table":
        from posttrain.base.console import new_table

        columns = ("file", "answer", "mean", "p50", "p95", "max")
        table = new_table("Characters of the answers", *columns, words=("answer",))
        for path, each in self.files.items():
            for name, found in ((path, each.lengths), (control_name(path), each.control_lengths)):
                for column, lengths in found.items():
                    if lengths is not None:
                        table.add_row(name, column, *lengths.shown)
        return table


def _listed(counts: Counter[Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{counts[key]:,} {key}" for key in keys if counts[key]) or "none"
