"""Join the answers of all shards into the output, in the order of the input: each answer once, and all of one job."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.files import why_unwritten
from posttrain.base.text import counted
from posttrain.errors import ConfigError, RunError
from posttrain.inference.answering.answer import Asked
from posttrain.inference.answering.partial import lines_in_order, require_new, write_in_order
from posttrain.inference.answering.shards import Shard, shards_beside
from posttrain.runs.manifest import differences

_SHOWN_DIFFERENCES = 3


def join(shards: Sequence[Asked]) -> None:
    """Write the outputs of shards that are `joinable`, and delete the shards' files.

    Raises:
        RunError: the disk is full; nothing is lost.
    """
    try:
        write_in_order([each.partial for each in shards], shards[0].outputs)
    except OSError as error:
        reason = why_unwritten(error)
        if reason is None:
            raise
        raise RunError(f"{reason}; free some space, and join the shards again: nothing is lost") from error
    finally:
        for each in shards:
            each.partial.close()
    count = sum(len(each.partial) for each in shards)
    console.print(f"joined {counted(count, 'answer')} of {counted(len(shards), 'shard')}")


def joinable(asked: Asked, *, overwrite: bool) -> list[Asked]:
    """All shards of `asked`.

    An output that is there already is not in the way if it is what would be written: a command was killed then.

    Raises:
        ConfigError: shards are missing, unfinished or of another job, which is all told at once; or an output is in
            the way, and `overwrite` does not allow to replace it.
    """
    there = [path for path in asked.outputs.values() if path.exists()]
    try:
        shards = _all_shards(asked)
    except ConfigError:
        require_new(there, overwrite=overwrite)
        raise
    if there and not overwrite:
        lines = lines_in_order([each.partial for each in shards], asked.outputs)
        require_new([path for path in there if not _has(path, lines[path])], overwrite=False)
    return shards


def _has(path: Path, lines: Iterable[bytes]) -> bool:
    with path.open("rb") as file:
        return all(file.read(len(line)) == line for line in lines) and not file.read(1)


def _all_shards(asked: Asked) -> list[Asked]:
    output = asked.partial.output
    found = shards_beside(output)
    if not found:
        first = Shard(1, 2).file_of(output).name
        raise ConfigError(f"there are no shards to join, such as {first}, in {output.parent}; answer them with --shard")
    counts = sorted({shard.count for shard in found})
    if len(counts) > 1:
        raise ConfigError(
            f"in {output.parent} are shards of {output.name} that are some of {counts[0]} and some of {counts[1]}; "
            "move those away that are not to be joined"
        )
    shards = [asked.of(Shard(number, counts[0])) for number in range(1, counts[0] + 1)]
    faults = [f"{each.partial.path.name} {fault}" for each in shards if (fault := _fault(each))]
    if faults:
        advice = "answer them with --shard, or copy their files here"
        raise ConfigError("\n  ".join([f"the shards of {output} cannot be joined:", *faults, advice]))
    return shards


def _fault(asked: Asked) -> str | None:
    """Why a shard cannot be joined; None if it can."""
    partial = asked.partial
    if partial.job is None:
        return "is not there"
    if partial.job != asked.identity:
        return f"is of another job: {_told(differences(partial.job, asked.identity))}"
    wanted = set(asked.keys().values())
    there = sum(key in wanted for key in partial)
    if there < len(wanted):
        return f"has {there:,} of {len(wanted):,} answers"
    return f"has {len(partial) - there:,} answers that are not its own" if len(partial) > there else None


def _told(changed: Sequence[str]) -> str:
    more = len(changed) - _SHOWN_DIFFERENCES
    return "; ".join([*changed[:_SHOWN_DIFFERENCES], *([f"and {more} more"] if more > 0 else [])])
