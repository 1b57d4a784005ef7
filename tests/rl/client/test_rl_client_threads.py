"""One client in several threads at once, as generation, grading and reporting use it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataserver.serving import Server, a_config, serving, until
from posttrain.dataserver.schemas import GradeResult, Sample
from posttrain.errors import ServerError
from posttrain.rl.client.client import DataserverClient
from rl.rl_serving import items_for

THREADS = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(a_config(tmp_path_factory.mktemp("threads") / "config")) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[DataserverClient]:
    with DataserverClient(server.url, run_id="a run", retry_seconds=30.0) as client:
        yield client


def a_step(client: DataserverClient, iteration: int) -> tuple[list[Sample], list[Sample], list[float | None]]:
    """Prompts of an iteration, substitutes for two of them, and rewards, half of them 1."""
    samples = client.sample(iteration, 0, 8)
    others = client.substitutes(iteration, [6, 1], 2)
    kept = [sample for sample in samples if sample.slot not in (6, 1)]
    results = client.grade(iteration, f"train-{iteration}", items_for([*kept, *others], "gold", "wrong"))
    return samples, others, [result.reward for result in results]


def test_threads_at_once_get_what_they_would_get_one_after_another(client: DataserverClient) -> None:
    steps = list(range(24))
    start = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS, initializer=start.wait) as threads:
        at_once = list(threads.map(lambda step: a_step(client, step), steps))
    assert at_once == [a_step(client, step) for step in steps]
    assert all(rewards == [1.0, 0.0] * 8 for _, _, rewards in at_once)
    assert client.retries == 0


def test_threads_that_come_and_go_share_one_event_loop(client: DataserverClient) -> None:
    before = threading.active_count()
    for iteration in range(3):
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda slot, i=iteration: client.sample(i, slot, 1), range(8)))
    assert threading.active_count() == before + 1


def test_a_slow_grade_keeps_no_other_request_waiting(client: DataserverClient) -> None:
    sample = client.sample(0, 0, 1)
    with ThreadPoolExecutor() as threads:
        grading = threads.submit(client.grade, 0, "slow", items_for(sample, "sleep 1.5"))
        samples = [client.sample(iteration, 0, 8) for iteration in range(4)]
        assert not grading.done()
        assert [result.status for result in grading.result(30)] == ["ok"]
    assert len(samples) == 4


def test_closing_ends_the_requests_of_other_threads(server: Server) -> None:
    client = DataserverClient(server.url, run_id="a run", retry_seconds=30.0)
    sample = client.sample(0, 0, 1)
    with ThreadPoolExecutor() as threads:
        grading = threads.submit(client.grade, 0, "left", items_for(sample, "sleep 1.8"))
        until(lambda: server.counter("waiting_completions") > 0)
        client.close()
        with pytest.raises(ServerError, match="was closed"):
            grading.result(30)
    with pytest.raises(ServerError, match="was closed"):
        client.sample(0, 0, 1)
    client.close()


def test_an_answer_belongs_to_the_thread_that_asked(client: DataserverClient) -> None:
    def graded(number: int) -> list[GradeResult]:
        return client.grade(0, f"own-{number}", items_for(samples, *["gold" if number % 2 else "wrong"] * (number + 1)))

    samples = client.sample(0, 0, 2)
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(graded, range(THREADS)))
    assert [[result.reward for result in results] for results in found] == [
        [float(number % 2)] * (2 * (number + 1)) for number in range(THREADS)
    ]
