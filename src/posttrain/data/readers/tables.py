"""Read CSV, Parquet and hub data sets as numbered objects.

CSV is parsed here and not by `datasets`, which has no line numbers, rejects the whole file for one bad line, reads 007
as 7 and NA as null, and shifts the cells of a line that has one too many into the wrong columns.
"""

import csv
import glob
import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from posttrain.base.text import as_shown, clipped, on_one_line
from posttrain.config.sections.datasets import HUB_ID
from posttrain.data.readers.json_lines import MAX_LINE_BYTES, Line, numbered_lines
from posttrain.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

_LONGEST_REASON = 300
_UNREADABLE = (ValueError, OverflowError, TypeError, RuntimeError, RecursionError)
"""What libraries raise for a cell without a valid value."""
_HAS_BROKEN_UTF8 = re.compile("[\udc80-\udcff]")


def read_csv(path: Path, delimiter: str = ",") -> Iterator[Line]:
    """One object per row, numbered by its first line; cells stay text as written, and empty ones become null."""
    # The limit is global to the process; Python's default of 128 KiB is too small for a long document.
    csv.field_size_limit(MAX_LINE_BYTES)
    rows = _csv_rows(path, delimiter)
    try:
        _, header = next(rows)
    except StopIteration:
        return
    if isinstance(header, str):
        raise DataError(f"{as_shown(path)}: the header cannot be read: {header}")
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        named = clipped(", ".join(map(repr, sorted(twice))))
        raise DataError(f"{as_shown(path)}: the header names {named} more than once")
    for number, cells in rows:
        if isinstance(cells, str):
            yield Line(number, None, cells)
        elif len(cells) != len(header):
            yield Line(number, None, f"has {len(cells)} cells where the header has {len(header)}")
        else:
            yield Line(number, {name: cell or None for name, cell in zip(header, cells, strict=True)})


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """Non-blank rows, each with the number of its first line; a str in place of the cells is the row's fault."""
    reader = csv.reader(_csv_text(path), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, f"not CSV: {error}"
            continue
        if any(_HAS_BROKEN_UTF8.search(cell) for cell in cells):
            yield number, "not UTF-8"
        elif cells:
            yield number, cells


def _csv_text(path: Path) -> Iterator[str]:
    for number, raw in numbered_lines(path):
        if raw is None:
            raise DataError(f"{as_shown(path)}:{number}: longer than {MAX_LINE_BYTES} bytes")
        # Invalid bytes become lone surrogates, so that only their own row fails.
        text = raw.decode("utf-8", "surrogateescape")
        yield text.removeprefix("\ufeff") if number == 1 else text


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form `owner/name` or `owner/name:subset`."""
    return re.fullmatch(HUB_ID, name) is not None


def load_parquet(path: Path) -> "Dataset":
    """The table in a Parquet file."""
    load_dataset = _loader(str(path))
    # `datasets` identifies a file by its timestamp, so its cache may hold another file's content.
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return load_dataset(
                "parquet",
                data_files=glob.escape(str(path)),
                split="train",
                cache_dir=scratch,
                keep_in_memory=True,
            )
        except _load_errors() as error:
            raise DataError(f"{as_shown(path)} cannot be read as Parquet: {_one_line(error)}") from None


def first_parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Rows from the start of a Parquet file, with all columns; reads no more than it has to."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return
    try:
        for batch in ParquetFile(path).iter_batches(batch_size=100):
            yield from (without_nulls(row) for row in batch.to_pylist())
    except (OSError, *_UNREADABLE):
        return  # whoever reads all rows says what is wrong


def load_saved(path: Path, split: str) -> "Dataset":
    """One split of a data set that `save_to_disk` of `datasets` wrote.

    Raises:
        DataError: it cannot be read, or has no such split.
    """
    _loader(as_shown(path))
    from datasets import DatasetDict, load_from_disk

    try:
        saved = load_from_disk(str(path))
    except _load_errors() as error:
        raise DataError(f"{as_shown(path)} cannot be read as a saved data set: {_one_line(error)}") from None
    if not isinstance(saved, DatasetDict):
        if split != "train":
            raise DataError(f"{as_shown(path)} is saved without splits; leave out split {split[:60]!r}")
        return saved
    if split not in saved:
        raise DataError(f"{as_shown(path)} has no split {split[:60]!r}; it has {', '.join(map(str, saved))}")
    return saved[split]


def load_hub(name: str, split: str) -> "Dataset":
    """One split of a Hugging Face hub data set, from the local cache if it is there."""
    if not is_hub_id(name):
        raise DataError(f"{name!r} is neither a file nor a hub id of the form owner/name")
    load_dataset = _loader(name)
    repo, _, subset = name.partition(":")
    logger.info("loading %s, split %s, from the hub", name, split)
    try:
        return load_dataset(repo, subset or None, split=split)
    except ConnectionError as error:
        raise DataError(
            f"{name} is not a local file, and the Hugging Face hub cannot be reached: {_one_line(error)}"
        ) from None
    except _load_errors() as error:
        hint = "; write owner/name:subset" if "Config name is missing" in str(error) else ""
        raise DataError(f"{name} cannot be loaded from the Hugging Face hub: {_one_line(error)}{hint}") from None


def table_lines(dataset: "Dataset", columns: Iterable[str], name: str = "the table") -> Iterator[Line]:
    """The rows, counted from 1; only the wanted columns are decoded, or all if the table has none of them.

    Raises:
        DataError: a cell has no valid value, e.g. text that is not UTF-8 or an impossible date; the message names the
            table by `name`.
    """
    wanted = [name for name in columns if name in dataset.column_names]
    rows = cast("Iterable[dict[str, Any]]", dataset.select_columns(wanted) if wanted else dataset)
    for number, row in enumerate(_readable(rows, name), start=1):
        yield Line(number, {name: without_nulls(cell) for name, cell in row.items()})


def _readable(rows: Iterable[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    count, each = 0, iter(rows)
    while True:
        try:
            row = next(each)
        except StopIteration:
            return
        except _UNREADABLE as error:
            raise DataError(f"{name} cannot be read beyond row {count}: {_one_line(error)}") from None
        count += 1
        yield row


def table_digest(dataset: "Dataset", columns: Iterable[str]) -> str:
    """Hash of the wanted columns' content; the fingerprint of `datasets` depends on timestamps."""
    digest = hashlib.blake2b(digest_size=16)
    for line in table_lines(dataset, columns):
        digest.update(json.dumps(line.value, sort_keys=True, default=repr).encode() + b"\n")
    return digest.hexdigest()


def without_nulls(value: Any) -> Any:
    """Drop keys with null values at any depth: a table gives each object the keys of all its neighbours."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _loader(source: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"reading {source} needs the package datasets: pip install 'posttrain-toolkit[train]'"
        ) from None
    return load_dataset


def _load_errors() -> tuple[type[Exception], ...]:
    from datasets.exceptions import DatasetsError

    return (DatasetsError, OSError, ValueError, RuntimeError)


def _one_line(error: BaseException) -> str:
    """The root cause in a chain of errors, on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return on_one_line(" ".join(str(error)[:_LONGEST_REASON].split())) or type(error).__name__
