"""Grade a stream of completions in order, with the processes and graders of a dataserver, and write the results."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from posttrain.base.console import Counting
from posttrain.data.readers.data_files import find_files
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.graders.remote import new_client
from posttrain.dataserver.graders.text.completions import completion_digest
from posttrain.dataserver.grading.cache import Answers, Question
from posttrain.dataserver.grading.questions import Questions, error_result, graded_result, own_plan, stage_plan
from posttrain.dataserver.offline.completions import Completion
from posttrain.dataserver.offline.display import show_table
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import GradeItem, GradeResult, reward_formula
from posttrain.errors import DataError

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
Planned = Counter[tuple[str, str | None, int | None]]
"""How many completions there are per data set, task and stage number; the stage None is validation."""


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
            planned[target.dataset, target.task, stage] += 1
            progress.advance()
    return planned


def show_plan(loaded: Loaded, planned: Planned) -> None:
    """Print what would be graded, and how rewards are computed from scores."""
    rows = []
    for (dataset, task, stage), count in planned.items():
        kind = (dataset, task)
        plan = own_plan(loaded.config, *kind) if stage is None else stage_plan(loaded.config, stage, *kind)
        name = dataset if task is None else f"{dataset}: {task}"
        rows.append((name, _stage_name(loaded, stage), count, reward_formula(plan.weights, plan.gates)))
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


def data_files(config: DataserverConfig) -> list[Path]:
    """The files of a config's data sets, none of which may be an output."""
    files: list[Path] = []
    for path in config.local_data().values():
        try:
            files += find_files(path).files
        except DataError:  # whoever reads the data says what is wrong with them
            files.append(path)
    return files
