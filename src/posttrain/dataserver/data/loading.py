"""Load and check all data sets of a config, and report all their faults at once."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from posttrain.base.cache import cache_dir
from posttrain.base.files import atomic_folder
from posttrain.base.text import as_url, clipped
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.data.readers.data_files import find_files
from posttrain.data.readers.hub_rows import fetch_hub_rows
from posttrain.data.sources import Source, open_data
from posttrain.data.splits import content_hash
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import FileDataset, HubDataset, ReadDataset, ReasoningGymDataset
from posttrain.dataserver.data.dataset_rows import (
    FileRows,
    ProceduralRows,
    PromptFacts,
    RowFault,
    Rows,
    RowWriter,
    json_digest,
    kept_rows,
)
from posttrain.dataserver.data.prompt_length import TokenCounter, characters
from posttrain.dataserver.data.samples import gold_answer, parse_prompt, prompt_columns, row_task
from posttrain.errors import ConfigError, DataError

Report = Callable[[str], None]

# Incremented when the layout of the cached files or the rules for a usable row change.
_CACHE_VERSION = 5
# The options that, besides the file's content, determine its rows.
_READ_BY = {"format", "columns", "gold", "max_prompt_chars", "max_prompt_percentile", "strip_tags", "task_column"}


def load_datasets(config: DataserverConfig, report: Report) -> dict[str, Rows]:
    """The rows of every data set.

    Raises:
        DataError: one message with the faults of all of them.
        ConfigError: there is no tokenizer where the config says.
    """
    loaded: dict[str, Rows] = {}
    problems: list[str] = []
    if config.local_data() and not config.data_root.is_dir():
        raise DataError(f"data_root {config.data_root} is not a folder; set it to the folder with the data")
    counter = TokenCounter(config.tokenizer) if config.tokenizer is not None else None
    for name, dataset in config.datasets.items():
        try:
            if isinstance(dataset, ReasoningGymDataset):
                loaded[name] = ProceduralRows(dataset.task, config.seed, dataset.params, dataset.rows)
            else:
                loaded[name] = load_rows(dataset, config.data_root, config.on_bad_record, report, counter)
        except (DataError, ConfigError) as error:
            problems.append(f"datasets.{name}: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return loaded


def load_rows(
    dataset: FileDataset | HubDataset,
    root: Path,
    on_bad_record: OnBadRecord,
    report: Report,
    counter: TokenCounter | None = None,
) -> FileRows:
    """The rows of a data set that is read, from the cache if the same content was read before.

    Args:
        root: the folder that files must be in.
        counter: counts tokens for `max_prompt_percentile`, which else counts characters.

    Raises:
        ConfigError: the counter's tokenizer cannot be loaded.
        DataError: the data do not exist or are outside the root, records are bad and `on_bad_record` is error, or no
            record is usable.
    """
    if isinstance(dataset, HubDataset):
        path, name = fetch_hub_rows(dataset.name, dataset.split), dataset.name
    elif as_url(dataset.path) is not None:
        path = name = dataset.path
    else:
        path = confined_data(root, dataset.path)
        name = str(path)
    source = open_data(path, prompt_columns(dataset.columns), format_=dataset.format, every_column=True)
    if source.note is not None:
        report(source.note)
    described = {**dataset.model_dump(mode="json", include=_READ_BY), "tasks": sorted(dataset.tasks)}
    counter = counter if dataset.max_prompt_percentile is not None else None
    counted_by = counter.digest if counter is not None else None
    key = json_digest(
        [_CACHE_VERSION, source.digest, PurePath(path).suffixes[-2:], described, on_bad_record, counted_by]
    )
    folder = cache_dir() / "rows" / key
    rows = kept_rows(folder, source.place)
    if rows is None:
        report(f"reading {name}")
        writer, faults = RowWriter(), list[RowFault]()
        for line in source.lines():
            try:
                if line.value is None:
                    raise DataError(line.fault)
                writer.add(line.number, line.value, _checked_row(line.value, dataset, counter))
            except DataError as error:
                faults.append(RowFault(line.number, clipped(str(error))))
        _require_usable(source, faults, len(writer), on_bad_record)
        _limit_prompts(writer, dataset)
        with atomic_folder(folder, lambda there: kept_rows(there, source.place) is not None) as aside:
            writer.write(aside, faults)
        rows = FileRows(folder, source.place)
    _report(rows, name, dataset, "characters" if counter is None else "tokens", report)
    return rows


def _checked_row(record: Mapping[str, Any], dataset: ReadDataset, counter: TokenCounter | None) -> PromptFacts:
    """What is kept of a row; DataError if it has no prompt or no task, or if its gold answer cannot be compared.

    The data set's own system message is left out, so that changing it does not change which rows are held out.
    """
    columns = prompt_columns(dataset.columns)
    conversation = parse_prompt(record, columns, None, dataset.strip_tags)
    try:
        json.dumps(gold_answer(record, dataset.gold), ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise DataError("the gold answer contains a lone surrogate, which no completion can contain") from None
    length = characters(conversation)
    return PromptFacts(
        content_hash(conversation),
        length,
        length if counter is None else counter.count(conversation),
        row_task(record, dataset),
        bool(dataset.strip_tags) and conversation != parse_prompt(record, columns, None),
    )


def _limit_prompts(writer: RowWriter, dataset: ReadDataset) -> None:
    shortest = writer.fewest_characters
    writer.leave_out_longer(dataset.max_prompt_chars, dataset.max_prompt_percentile)
    if not len(writer):
        raise DataError(
            f"max_prompt_chars: {dataset.max_prompt_chars} excludes every row; the shortest prompt has {shortest} "
            "characters"
        )


def _report(rows: FileRows, path: str, dataset: ReadDataset, unit: str, report: Report) -> None:
    """Say what became of the rows of a file, besides the bad ones."""
    if rows.longest is not None:
        kept = f"keeps prompts of up to {rows.longest:,} {unit}"
        report(f"{path}: max_prompt_percentile {dataset.max_prompt_percentile:g} {kept}")
    if rows.too_long:
        report(f"{path}: rows left out because their prompts are too long: {rows.too_long:,}")
    if dataset.strip_tags:
        report(f"{path}: prompts with tags removed ({', '.join(dataset.strip_tags)}): {rows.had_tags:,}")
    if dataset.tasks:
        report(f"{path}: rows by task: {', '.join(f'{task} {rows.per_task.get(task, 0):,}' for task in dataset.tasks)}")


def _require_usable(source: Source, faults: list[RowFault], usable: int, on_bad_record: OnBadRecord) -> None:
    if faults and (on_bad_record == "error" or not usable):
        raise source.refusal(((fault.line, fault.reason) for fault in faults), usable)
    if not usable:
        raise DataError(f"{source.name} holds no records")


def confined_data(root: Path, relative: str) -> Path:
    """The file, folder or pattern `relative` under the data root.

    Raises:
        DataError: there is no such file, or a file lies outside the root, possibly through a symbolic link.
    """
    path = root / relative
    _require_inside(path, root)  # before anything outside is looked at
    for each in find_files(path).files:
        _require_inside(each, root)
    return path


def _require_inside(path: Path, root: Path) -> None:
    real, real_root = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([real, real_root]) != real_root:
        raise DataError(f"{path} points to {real}, outside data_root {real_root}; data are read only from inside it")
