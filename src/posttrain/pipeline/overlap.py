"""Held-out prompts that are also trained on, over all steps of a pipeline."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from posttrain.base.console import console
from posttrain.base.text import as_url, counted
from posttrain.config.sections.datasets import Format
from posttrain.data.overlap import overlaps
from posttrain.data.readers.data_files import is_pattern
from posttrain.data.row_texts import prompt_text, read_texts
from posttrain.data.sources import open_rows
from posttrain.dataserver.config.prompts import DataserverPromptsConfig, RowSplit
from posttrain.errors import DataError

Prompts = Iterator[tuple[str, str | None]]
"""Places and texts; None where prompts cannot be read, or not yet."""
_SHOWN = 5


@dataclass(frozen=True)
class Overlap:
    """A held-out prompt that is also trained on, wholly or in part.

    Attributes:
        held_out, trained: places of the prompts, each with its step.
        share: how much of the held-out prompt's runs of 13 words the trained one has, from 0 to 1.
        exact: whether they are the same but for case and white space.
    """

    held_out: str
    trained: str
    share: float
    exact: bool

    def __str__(self) -> str:
        return f"{self.held_out} {'equals' if self.exact else f'is for {self.share:.0%} in'} {self.trained}"


@dataclass(frozen=True)
class Overlaps:
    """What was found, the exact ones first.

    Attributes:
        unread: places whose prompts could not be read, so that nothing is known of them.
    """

    found: Sequence[Overlap] = ()
    unread: Sequence[str] = ()


def find_overlaps(held_out: Prompts, trained: Prompts) -> Overlaps:
    """Each held-out prompt with each trained one that it equals, or that has half of it."""
    unread: list[str] = []

    def texts(prompts: Prompts) -> Iterator[tuple[str, str]]:
        for place, text in prompts:
            if text is None:
                unread.append(place)
            else:
                yield place, text

    found = overlaps(texts(held_out), texts(trained))
    each = {Overlap(held.place, place, held.share, held.exact) for held, place in found}
    ordered = sorted(each, key=lambda each: (not each.exact, each.held_out, each.trained))
    return Overlaps(ordered, tuple(dict.fromkeys(unread)))


def require_none(found: Sequence[Overlap], *, allowed: bool) -> None:
    """Print what overlaps.

    Raises:
        DataError: a held-out prompt is trained on, and that is not allowed.
    """
    lines = [str(each) for each in found[:_SHOWN]]
    lines += [f"... and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    equal = len({each.held_out for each in found if each.exact})
    if equal and not allowed:
        told = f"{counted(equal, 'held-out prompt')} would be trained on (allow_overlap: true permits it):"
        raise DataError("\n  ".join([told, *lines]))
    if found:
        places = {each.held_out for each in found}
        told = f"{counted(len(places), 'held-out prompt')} share runs of words with trained ones:"
        console.print("\n  ".join([told, *lines]))


def prompts_in(path: Path | str, split: str, columns: BaseModel | None, format_: Format = "auto") -> Prompts:
    """The prompts of a file of conversations, pairs, questions or prompts, and each user's turn that is answered.

    Rows that are none of these are left out. A Hugging Face data set and a file that is not there (yet) cannot be read.
    """
    if not (os.path.exists(path) or is_pattern(str(path)) or as_url(path)):
        yield str(path), None
        return
    given: Mapping[str, str | None] = {} if columns is None else columns.model_dump()
    names = {key: name for key, name in given.items() if name is not None}
    source = open_rows(path, names, split, format_, every_column=True)
    for line in source.lines():
        if line.value is None:
            continue
        renamed = {key: line.value[name] for key, name in names.items() if name in line.value}
        try:
            texts = read_texts({**line.value, **renamed})
            yield from ((source.place(line.number), text) for text in dict.fromkeys((texts.prompt, *texts.asked)))
        except DataError:
            continue  # the step that reads it says what is wrong


def served_prompts(config: Path, dataset: str | None, split: RowSplit) -> Prompts:
    """The prompts of a dataserver's config; none if no rows are held out.

    Raises:
        ConfigError, DataError: they are wrong.
    """
    from posttrain.evaluate.prompts import read_prompts

    wanted = DataserverPromptsConfig(config=config, dataset=dataset, split=split)
    for row in read_prompts("dataserver", wanted, None, {}, allow_code_execution=True, tell=lambda text: None).rows:
        yield row.place, prompt_text(row.prompt)
