"""Find the data files that a path names: one file, a folder's, or those that match a pattern."""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from posttrain.base.files import require_file
from posttrain.base.text import as_shown, counted, first_of
from posttrain.data.readers.json_lines import open_bytes, unreadable
from posttrain.data.readers.remote import RemoteFile, listed
from posttrain.errors import DataError

ROW_KINDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
"""Endings of text files with rows; `.gz` may follow."""
PROSE_KINDS = (".txt", ".md")
"""Endings of text files that are one text each; `.gz` may follow."""
_COMPRESSED = {".zst", ".bz2", ".xz", ".zip", ".lz4", ".br", ".7z"}
_KNOWN = f"{', '.join(ROW_KINDS)} (also with .gz) and .parquet"
_WILD = frozenset("*?")
F = TypeVar("F", Path, RemoteFile)


@dataclass(frozen=True)
class Found(Generic[F]):
    """Data files in the order in which they are read.

    Attributes:
        note: how many of several files are read and what else is there, in one line; None if a file was named.
    """

    files: tuple[F, ...]
    note: str | None = None


def is_pattern(name: str) -> bool:
    """Whether a path has a wildcard (`*` or `?`) and names no file itself."""
    return not _WILD.isdisjoint(name) and not os.path.exists(name)


def is_saved(path: Path) -> bool:
    """Whether the path is a folder that `save_to_disk` of `datasets` wrote."""
    return any(os.path.isfile(path / name) for name in ("dataset_dict.json", "dataset_info.json"))


def find_files(path: Path, *, prose: bool = False) -> Found[Path]:
    """The files that `path` names, which may be a file, a folder with all its subfolders, a data set saved by
    `datasets`, or a pattern such as `data/*.jsonl` (`**` matches any folders).

    Files of a folder or pattern are in the order of their names. Of a folder, hidden files are left out, and those that
    cannot be data are named in the note.

    Args:
        prose: whether texts without rows (`.txt`, `.md`) are data too.

    Raises:
        DataError: there is no such file, nothing matches, or the kind of a file cannot be told from its name.
    """
    if is_pattern(str(path)):
        matching = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        files = tuple(each for each in matching if each.is_file())
        if not files:
            raise DataError(f"{as_shown(path)}: no file matches the pattern")
        for each in files:
            kind_of(each, prose=prose)
        return Found(files, _note(path, files))
    if is_saved(path):
        return Found(tuple(sorted(each for each in path.rglob("*") if each.is_file())))
    if os.path.isdir(path):
        return _in_folder(path, prose)
    require_file(path)
    kind_of(path, prose=prose)
    return Found((path,))


def _in_folder(folder: Path, prose: bool) -> Found[Path]:
    if (folder / "config.json").is_file():
        raise DataError(f"{as_shown(folder)} is the folder of a model, not of data")
    there = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(folder)))
    files = tuple(path for path in there if known_kind(path, prose=prose) is not None)
    others = [str(path.relative_to(folder)) for path in there if known_kind(path, prose=prose) is None]
    return Found(files, _note(folder, files, others))


def find_remote(url: str, *, prose: bool = False) -> Found[RemoteFile]:
    """The files that an address names, as `find_files` finds local ones.

    Raises:
        DataError: as `find_files`, or the store does not answer.
    """
    listing, path = listed(url), Path(url)
    if listing.kind != "folder":
        for each in listing.files:
            kind_of(Path(each.url), prose=prose)
        return Found(listing.files, None if listing.kind == "file" else _note(path, listing.files))
    kinds = {each: known_kind(Path(each.url), prose=prose) for each in listing.files}
    files = tuple(each for each, kind in kinds.items() if kind is not None)
    others = [each.url.removeprefix(url.rstrip("/") + "/") for each, kind in kinds.items() if kind is None]
    return Found(files, _note(path, files, others))


def _note(place: Path, files: Sequence[object], others: Sequence[str] = ()) -> str:
    left_out = first_of(others)
    if not files:
        has = f"it has {left_out}" if others else "it has no files"
        raise DataError(f"{as_shown(place)} is a folder without data files ({_KNOWN}); {has}")
    left = f"; not read: {left_out}" if others else ""
    return f"{as_shown(place)}: {counted(len(files), 'file')}, in the order of their names{left}"


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def known_kind(path: Path, *, prose: bool = True) -> str | None:
    """The ending that decides how a file is read; None if it has none that is known."""
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind == ".parquet":
        return kind if path.suffix.lower() == kind else None
    return kind if kind in ROW_KINDS or (prose and kind in PROSE_KINDS) else None


def kind_of(path: Path, *, prose: bool = True) -> str:
    """Like `known_kind`, but DataError instead of None."""
    if (kind := known_kind(path, prose=prose)) is None:
        if path.suffix.lower() in _COMPRESSED:
            raise DataError(f"{as_shown(path)} uses an unsupported compression; unpack it, or recompress it as .gz")
        hint = "; for a text without rows, set type: text" if known_kind(path) else ""
        raise DataError(f"{as_shown(path)}: cannot tell the format from the name; supported: {_KNOWN}{hint}")
    return kind


def count_lines(path: Path) -> int:
    """Number of lines of a text file, or of rows of a `.parquet` file."""
    if kind_of(path) == ".parquet":
        from pyarrow.parquet import read_metadata

        return read_metadata(path).num_rows
    count, last = 0, b"\n"
    with open_bytes(path) as file, unreadable(path):
        while part := file.read(1 << 20):
            count, last = count + part.count(b"\n"), part[-1:]
    return count + (last != b"\n")
