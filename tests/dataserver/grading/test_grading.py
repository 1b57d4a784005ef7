"""Each distinct completion is graded once, and one that cannot be graded still gets an answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
import pytest

from nasty_graders import Obedient
from posttrain.dataserver.graders.base import Grader, Score
from posttrain.dataserver.graders.remote import Failure, Outcome, RemoteGrader
from posttrain.dataserver.graders.text.completions import GradeInput, completion_digest
from posttrain.dataserver.grading.cache import GradeBook, Graded, Question
from posttrain.dataserver.grading.pool import GradingPool
from posttrain.dataserver.grading.rewards import GradingPlan
from posttrain.dataserver.grading.worker import Setup, Task

T = TypeVar("T")
MIB = 2**20


class Counting(Grader):
    """Scores 1 and logs each completion; `slow…` takes 0.2 s, `needs …` fails until a file of that name exists."""

    type: Literal["counting"] = "counting"
    folder: str

    def score(self, item: GradeInput) -> Score | float:
        with open(Path(self.folder) / "calls", "a") as calls:
            calls.write(f"{item.completion}\n")
        if item.completion.startswith("slow"):
            time.sleep(0.2)
        if item.completion.startswith("needs ") and not (Path(self.folder) / item.completion).exists():
            raise OSError("not there yet")
        return 1.0


class Service(RemoteGrader):
    """A service that does what the completion says."""

    type: Literal["service"] = "service"
    url: str = "http://127.0.0.1:1"

    async def score_all(self, items: Sequence[GradeInput], client: httpx.AsyncClient) -> list[Outcome]:
        orders = [item.completion for item in items]
        if "break" in orders:
            raise ConnectionError("no way there")
        if "too few" in orders:
            return []
        return [_OUTCOMES.get(order, Score(0.5)) for order in orders]


_OUTCOMES: dict[str, Any] = {
    "nan": Score(float("nan")),
    "two": Score(2.0),
    "text": "1.0",
    "abstain": Failure("abstain", "no idea"),
    "error": Failure("error", "it is down\ud800"),
}


class ExitsWhenRead(Obedient):
    """A grader that exits any process that unpickles it."""

    def __reduce__(self) -> Any:
        return exit, (3,)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grading")


@pytest.fixture(scope="module")
def graders(folder: Path) -> dict[str, Grader]:
    return {"counting": Counting(folder=str(folder)), "obedient": Obedient(), "service": Service()}


@pytest.fixture(scope="module")
def pool(graders: dict[str, Grader]) -> Iterator[GradingPool]:
    local = {name: grader for name, grader in graders.items() if not isinstance(grader, RemoteGrader)}
    pool = GradingPool(2, Setup(local, seconds=2, memory_bytes=4 * 2**30), tasks_per_worker=500)
    with closing(pool):
        yield pool


@pytest.fixture
def with_book(graders: dict[str, Grader], pool: GradingPool) -> Callable[..., Any]:
    """Runs a function with its own grade book in its own event loop, which must report no errors."""

    def run(use: Callable[[GradeBook], Awaitable[T]], cache_bytes: int = MIB, failure_seconds: float = 60.0) -> T:
        complaints: list[Mapping[str, Any]] = []

        async def go() -> T:
            asyncio.get_running_loop().set_exception_handler(lambda loop, complaint: complaints.append(complaint))
            async with httpx.AsyncClient() as client:
                return await use(GradeBook(graders, pool, client, cache_bytes, failure_seconds))

        answer = asyncio.run(go())
        assert complaints == []
        return answer

    return run


def question(completion: str, *names: str, sample: str = "a", plan: str = "", **more: Any) -> Question:
    graders = names or ("counting",)
    task = Task(tuple(name for name in graders if name != "service"), GradeInput(completion, None, **more))
    weights = GradingPlan.make(dict.fromkeys(graders, 1.0), (), "abstain")
    return Question(sample, plan, weights, task, completion_digest(completion))


async def answers(book: GradeBook, *questions: Question) -> list[Graded]:
    asked = book.ask(questions)
    await asked.wait()
    return [graded for graded in asked.graded if graded is not None]


def calls(folder: Path, text: str) -> int:
    """How often completions containing this text were graded."""
    return sum(text in line for line in (folder / "calls").read_text().splitlines())


def test_equal_questions_of_one_request_are_graded_once(with_book: Any, folder: Path) -> None:
    async def use(book: GradeBook) -> int:
        graded = await answers(book, *[question("thrice")] * 3, question("once"))
        assert [one.reward.value for one in graded] == [1.0] * 4
        return book.cache_hits

    assert with_book(use) == 2
    assert (calls(folder, "thrice"), calls(folder, "once")) == (1, 1)


def test_a_question_that_is_under_way_is_joined(with_book: Any, folder: Path) -> None:
    async def use(book: GradeBook) -> None:
        first = book.ask([question("slow and shared")])
        await asyncio.sleep(0.05)
        assert book.waiting == 1
        second = book.ask([question("slow and shared"), question("slow and alone")])
        assert book.waiting == 2
        await first.wait()
        await second.wait()
        assert second.graded[0] is first.graded[0]
        assert book.waiting == 0

    with_book(use)
    assert calls(folder, "slow and shared") == 1


def test_a_question_that_comes_back_is_remembered(with_book: Any, folder: Path) -> None:
    async def use(book: GradeBook) -> None:
        first = await answers(book, question("again"))
        assert await answers(book, question("again")) == first

    with_book(use)
    assert calls(folder, "again") == 1


def test_whatever_the_reward_may_depend_on_makes_another_question(with_book: Any, folder: Path) -> None:
    different = [
        question("distinct"),
        question("distinct", sample="b"),
        question("distinct", plan="stage 1"),
        question("distinct", completion_tokens=3),
        question("distinct", truncated=True),
        question("distinct", truncated=False),
    ]

    with_book(lambda book: answers(book, *different))

    assert calls(folder, "distinct") == len(different)


def test_who_goes_away_takes_nobodys_work_along(with_book: Any, folder: Path) -> None:
    async def use(book: GradeBook) -> None:
        impatient = asyncio.create_task(book.ask([question("slow for two")]).wait())
        await asyncio.sleep(0.05)
        patient = book.ask([question("slow for two")])
        impatient.cancel()
        await patient.wait()
        assert [graded and graded.reward.value for graded in patient.graded] == [1.0]

    with_book(use)
    assert calls(folder, "slow for two") == 1


def test_what_failed_is_remembered_for_a_while_only(with_book: Any, folder: Path) -> None:
    async def use(book: GradeBook) -> list[str]:
        asked = question("needs help")
        first = await answers(book, asked)
        second = await answers(book, asked)
        assert calls(folder, "needs help") == 1
        (folder / "needs help").touch()
        await asyncio.sleep(0.4)
        third = await answers(book, asked)
        return [graded[0].reward.status for graded in (first, second, third)]

    assert with_book(use, failure_seconds=0.3) == ["error", "error", "ok"]
    assert calls(folder, "needs help") == 2


@pytest.mark.parametrize(("cache_bytes", "hits"), [(0, 0), (3000, 0), (MIB, 10)])
def test_no_more_is_remembered_than_there_is_room_for(with_book: Any, cache_bytes: int, hits: int) -> None:
    async def use(book: GradeBook) -> int:
        asked = [question(f"{cache_bytes} {number}") for number in range(10)]
        for _ in range(2):
            for one in asked:
                assert (await answers(book, one))[0].reward.value == 1.0
        return book.cache_hits

    assert with_book(use, cache_bytes=cache_bytes) == hits


def test_graders_of_both_kinds_judge_one_completion(with_book: Any) -> None:
    (graded,) = with_book(lambda book: answers(book, question("fine", "obedient", "service")))

    assert {name: judgement.score for name, judgement in graded.judgements.items()} == {"obedient": 1.0, "service": 0.5}
    assert graded.reward.value == 0.75


@pytest.mark.parametrize(
    ("order", "status", "reason"),
    [
        ("nan", "error", "service: the grader returned 'nan', not a number from 0 to 1"),
        ("two", "error", "service: the grader returned '2.0', not a number from 0 to 1"),
        ("text", "error", "service: the grader returned '1.0', not a number from 0 to 1"),
        ("abstain", "abstain", "service: no idea"),
        ("error", "error", "service: it is down?"),
        ("break", "error", "service: ConnectionError: no way there"),
        ("too few", "error", "service: ValueError: zip() argument 2 is shorter than argument 1"),
    ],
)
def test_a_service_that_misbehaves_costs_its_own_score_only(
    with_book: Any, order: str, status: str, reason: str
) -> None:
    asked = [question(order, "service"), question("fine", "obedient"), question("fine", "counting", plan="another")]

    first, *others = with_book(lambda book: answers(book, *asked))

    assert (first.reward.status, first.reward.reason) == (status, reason)
    assert [other.reward.value for other in others] == [1.0, 1.0]


def test_where_no_process_can_be_started_each_completion_is_told_so() -> None:
    async def use() -> list[Graded]:
        async with httpx.AsyncClient() as client:
            book = GradeBook({"grader": ExitsWhenRead()}, pool, client, MIB)
            return await answers(book, question("x", "grader"), question("y", "grader"))

    setup = Setup({"grader": ExitsWhenRead()}, seconds=1, memory_bytes=4 * 2**30)
    with closing(GradingPool(1, setup, tasks_per_worker=5)) as pool:
        graded = asyncio.run(use())

    reason = "grader: grading failed: the grading processes exit as soon as they start; see the log"
    assert [one.reward.status for one in graded] == ["error", "error"]
    assert all(one.reward.reason.startswith(reason) for one in graded)


def test_closing_ends_what_is_under_way(with_book: Any) -> None:
    async def use(book: GradeBook) -> float:
        asked = book.ask([question(f"slow {number}") for number in range(40)])
        await asyncio.sleep(0.1)
        begin = time.monotonic()
        await book.close()
        assert None in asked.graded
        return time.monotonic() - begin

    # Grading everything would take 4 seconds.
    assert with_book(use) < 1
