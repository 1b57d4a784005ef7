"""Grade a stream of completions in order, with the processes and graders of a dataserver, and write the results."""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from posttrain.base.console import Counting
from posttrain.base.files import atomic_writer
from posttrain.base.locks import own_output, require_unowned
from posttrain.base.strict_json import json_line
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.graders.remote import new_client
from posttrain.dataserver.graders.text.completions import completion_digest
from posttrain.dataserver.grading.cache import Answers, Question
from posttrain.dataserver.grading.questions import Questions, error_result, graded_result, own_plan, stage_plan
from posttrain.dataserver.offline.completions import Completion
from posttrain.dataserver.offline.display import show_table
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import GradeItem, GradeResult, reward_formula
from posttrain.errors import ConfigError

_BATCH = 256
# Batches in progress: the workers grade the next ones while the slowest completions of one are awaited.
_AHEAD = 4

C = TypeVar("C", bound=Completion)


class Judged(NamedTuple):
    """The result of a completion, with its target and stage."""

    target: Target
    stage: str
    """The name of the stage whose graders judged it; `validation` for held-out rows, judged alike in all stages."""
    result: GradeResult


Done = Callable[[C, Judged], None]
Planned = Counter[tuple[str, int | None]]
"""How many completions there are per data set and stage number; None is validation."""


def check_all(loaded: Loaded, completions: Iterable[Completion], total: int | None = None) -> Planned:
    """Count the completions to grade.

    Raises:
        DataError: one of them names a row that does not exist.
    """
    planned: Planned = Counter()
    with Counting("checking", "completions", total) as progress:
        for each in completions:
            target = loaded.samples.target(each.sample_id)
            stage = None if target.is_held_out else loaded.sampler.stage_index(each.iteration)
            planned[target.dataset, stage] += 1
            progress.advance()
    return planned


def show_plan(loaded: Loaded, planned: Planned) -> None:
    """Print what would be graded, and how rewards are computed from scores."""
    rows = []
    for (dataset, stage), count in planned.items():
        plan = own_plan(loaded.config, dataset) if stage is None else stage_plan(loaded.config, stage, dataset)
        rows.append((dataset, _stage_name(loaded, stage), count, reward_formula(plan.weights, plan.gates)))
    show_table(("data set", "stage", "completions", "reward"), rows)


def grade_all(loaded: Loaded, completions: Iterable[C], total: int, done: Done[C]) -> None:
    """Grade completions, however long it takes, and call `done` for each of them, in order.

    Only some of them are in memory at a time. `total`: how many there are, for the progress display.

    Raises:
        ConfigError: a grader cannot be loaded.
        DataError: a completion names a row that does not exist.
    """
    with Counting("grading", "completions", total) as progress:

        def count(completion: C, judged: Judged) -> None:
            done(completion, judged)
            progress.advance()

        asyncio.run(_grade_all(loaded, iter(completions), count))


def graded_line(completion: Completion, judged: Judged) -> dict[str, object]:
    """The line of output for a completion."""
    target, stage, result = judged
    return {
        "dataset": target.dataset,
        "sample_id": completion.sample_id,
        "iteration": completion.iteration,
        "stage": stage,
        **result.model_dump(exclude={"item_id"}),
        "prompt": target.prompt,
        "gold": target.gold,
        "completion": completion.text,
        "completion_tokens": completion.completion_tokens,
        "truncated": completion.truncated,
    }


def _stage_name(loaded: Loaded, stage: int | None) -> str:
    return "validation" if stage is None else loaded.config.stages[stage].name


class _Asked(NamedTuple, Generic[C]):
    completion: C
    target: Target
    stage: str
    question: Question | None
    """None if the completion is longer than the server would accept."""


async def _grade_all(loaded: Loaded, completions: Iterator[C], done: Done[C]) -> None:
    questions = Questions(loaded.config, loaded.graders)
    pool = loaded.new_pool()
    try:
        await loaded.load_graders(pool)
        async with new_client() as client:
            book = loaded.new_book(pool, client)
            under_way: deque[tuple[list[_Asked[C]], Answers]] = deque()
            while batch := [_asked(loaded, questions, each) for each in islice(completions, _BATCH)]:
                under_way.append((batch, book.ask([each.question for each in batch if each.question is not None])))
                if len(under_way) == _AHEAD:
                    await _finish(loaded, *under_way.popleft(), done)
            while under_way:
                await _finish(loaded, *under_way.popleft(), done)
    finally:
        # Grading still in progress would find its processes gone, and start new ones.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.to_thread(pool.close)


def _asked(loaded: Loaded, questions: Questions, completion: C) -> _Asked[C]:
    target = loaded.samples.target(completion.sample_id)
    stage = loaded.sampler.stage_index(completion.iteration)
    question = None
    if len(completion.text) <= loaded.config.limits.completion_chars:
        item = GradeItem(
            item_id=str(completion.number),
            sample_id=completion.sample_id,
            completion=completion.text,
            completion_tokens=completion.completion_tokens,
            truncated=completion.truncated,
        )
        question = questions.question(target, stage, item, completion_digest(completion.text))
    return _Asked(completion, target, _stage_name(loaded, None if target.is_held_out else stage), question)


async def _finish(loaded: Loaded, batch: list[_Asked[C]], answers: Answers, done: Done[C]) -> None:
    """Wait until a whole batch is graded, and call `done` for each completion."""
    await answers.wait()
    graded = iter(answers.graded)
    for completion, target, stage, question in batch:
        # The same answer as the server's.
        result = error_result("", f"the completion is longer than {loaded.config.limits.completion_chars} characters")
        if question is not None and (answer := next(graded)) is not None:
            result = graded_result("", question.plan, answer)
        done(completion, Judged(target, stage, result))


Write = Callable[[dict[str, object]], None]


def check_output(output: Path, inputs: Iterable[Path], config: DataserverConfig, *, overwrite: bool) -> None:
    """Refuse an output that must not or cannot be written; nothing is created.

    Raises:
        ConfigError: it is one of `inputs` or a data set of the config, it exists and `overwrite` is false, or no file
            can be created there.
    """
    data = [config.data_root / each.path for each in config.datasets.values() if isinstance(each, FileDataset)]
    if any(_is_same(output, path) for path in (*inputs, *data)):
        raise ConfigError(f"{output} is an input; give the output another name")
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; the output must be a file, e.g. graded.jsonl")
    if output.exists() and not overwrite:
        raise ConfigError(f"{output} already exists; choose another name, or replace it with --overwrite")
    existing = next(parent for parent in Path(os.path.realpath(output)).parents if parent.exists())
    if not existing.is_dir():
        raise ConfigError(f"{output} cannot be written: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{output} cannot be written: no file can be created in {existing}")


@contextmanager
def checked_output(
    output: Path | None, inputs: Sequence[Path], config: DataserverConfig, *, overwrite: bool, dry_run: bool
) -> Iterator[None]:
    """Refuse an output as `check_output` does, and lock it against other processes while the block lasts.

    A dry run takes no lock; it only refuses an output that is locked.

    Raises:
        ConfigError: as `check_output`, or another process is writing the output.
    """
    if output is None:
        yield
        return
    check_output(output, inputs, config, overwrite=overwrite)
    if dry_run:
        require_unowned(output)
        yield
        return
    with own_output(output):
        check_output(output, inputs, config, overwrite=overwrite)  # again: another process may have written it since
        yield


@contextmanager
def output_lines(output: Path | None) -> Iterator[Write]:
    """A function that writes a line, or does nothing if there is no output; the file appears when the block ends.

    Raises:
        ConfigError: no file can be created there.
    """
    if output is None:
        yield lambda line: None
        return
    with ExitStack() as stack:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(atomic_writer(output))
        except OSError as error:
            raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
        yield lambda line: file.writelines((json_line(line),))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
