"""Grades a file of completions without a server: the same graders, processes and rewards."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import httpx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from toolkit.core.jsonl import write_jsonl
from toolkit.core.runs.progress import console
from toolkit.dataserver.config.dataserver import DataserverConfig
from toolkit.dataserver.grading import Question
from toolkit.dataserver.loaded import Loaded
from toolkit.dataserver.offline.completions import OfflineCompletion, read_completions
from toolkit.dataserver.questions import Questions
from toolkit.dataserver.results import graded_result
from toolkit.dataserver.schemas import GradeItem, GradeResult
from toolkit.errors import ConfigError

# Questions that are under way at once.
_BATCH = 1024


def grade_file(config: DataserverConfig, source: Path, output: Path | None) -> None:
    """Grade the completions of a file, print what came out, and write one line per completion to `output`.

    Raises:
        DataError, ConfigError: config, data or completions are wrong.
    """
    loaded = Loaded.read(config, console.print)
    completions = read_completions(source, loaded)
    questions = Questions(loaded)
    asked = [
        questions.question(each.target, loaded.sampler.stage_index(each.iteration), _item(each)) for each in completions
    ]
    results = grade_questions(loaded, asked)
    if output is not None:
        write_jsonl(output, (_output_line(*pair) for pair in zip(completions, results, strict=True)))
    console.print(summary_table([each.target.dataset for each in completions], results), soft_wrap=False)
    if output is not None:
        console.print(f"wrote {output}")


def grade_questions(loaded: Loaded, asked: Sequence[Question]) -> list[GradeResult]:
    """Grade everything, however long it takes, with a progress bar.

    Raises:
        ConfigError: a grader cannot be loaded.
    """
    with _progress() as bar:
        task = bar.add_task("grading", total=len(asked))
        return asyncio.run(_grade_all(loaded, asked, lambda count: bar.update(task, advance=count)))


async def _grade_all(loaded: Loaded, asked: Sequence[Question], advance: Callable[[int], None]) -> list[GradeResult]:
    pool = loaded.new_pool()
    try:
        problems = await pool.check_graders()
        if problems:
            raise ConfigError("\n".join(problems))
        async with httpx.AsyncClient(trust_env=False) as client:
            book = loaded.new_book(pool, client)
            results: list[GradeResult] = []
            for start in range(0, len(asked), _BATCH):
                batch = asked[start : start + _BATCH]
                graded = await asyncio.gather(*book.ask(batch))
                results += [
                    graded_result(question.sample_id, question.plan, each)
                    for question, each in zip(batch, graded, strict=True)
                ]
                advance(len(batch))
            return results
    finally:
        await asyncio.to_thread(pool.close)


def summary_table(datasets: Sequence[str], results: Sequence[GradeResult]) -> Table:
    """Per data set: how many completions, what became of them, their mean reward, and the mean score of each grader."""
    table = Table("data set", "completions", "ok", "abstain", "error", "mean reward", "mean scores")
    for name in dict.fromkeys(datasets):
        own = [result for dataset, result in zip(datasets, results, strict=True) if dataset == name]
        statuses = Counter(result.status for result in own)
        table.add_row(
            name,
            f"{len(own):,}",
            *(f"{statuses[status]:,}" for status in ("ok", "abstain", "error")),
            mean_text(result.reward for result in own),
            ", ".join(f"{grader} {mean}" for grader, mean in _mean_scores(own).items()),
        )
    return table


def mean_text(values: Iterable[float | None]) -> str:
    """The mean of those that are there, with four digits; a dash where none is."""
    known = [value for value in values if value is not None]
    return f"{fmean(known):.4f}" if known else "–"


def _mean_scores(results: Sequence[GradeResult]) -> dict[str, str]:
    graders = dict.fromkeys(name for result in results for name in result.components)
    return {
        name: mean_text(result.components[name].score for result in results if name in result.components)
        for name in graders
    }


def _item(completion: OfflineCompletion) -> GradeItem:
    return GradeItem(
        item_id=str(completion.line),
        sample_id=completion.sample_id,
        completion=completion.completion,
        completion_tokens=completion.completion_tokens,
        truncated=completion.truncated,
    )


def _output_line(completion: OfflineCompletion, result: GradeResult) -> dict[str, object]:
    return {
        "line": completion.line,
        "dataset": completion.target.dataset,
        "iteration": completion.iteration,
        **result.model_dump(exclude={"item_id"}),
        "sample_id": completion.sample_id,
        "completion": completion.completion,
        "completion_tokens": completion.completion_tokens,
        "truncated": completion.truncated,
    }


@contextmanager
def _progress() -> Iterator[Progress]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        yield bar
