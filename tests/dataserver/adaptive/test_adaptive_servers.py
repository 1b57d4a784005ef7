"""Adaptive sampling in real server processes: killed, replicated, and without their database."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
from adaptive_trainers import SLOTS, Trainers, grade_request, kept_plans, kept_rewards, without_config_id, write_config

from dataserver.postgres import PostgresServer
from dataserver.serving import good, serving, until
from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.dataserver.journal.config import JournalConfig

_ITERATIONS = 20


def ask(client: httpx.Client, iteration: int, **more: Any) -> Any:
    return good(client.post("/sample", json={"iteration": iteration, "batch_size": SLOTS, **more}))


def substitutes(client: httpx.Client, iteration: int, attempt: int) -> Any:
    body = {"iteration": iteration, "slots": list(range(SLOTS)), "attempt": attempt}
    return good(client.post("/sample", json=body))


def test_a_server_that_is_killed_under_load_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    with Trainers(_ITERATIONS, "one", "other") as undisturbed, serving(write_config(tmp_path / "whole")) as server:
        undisturbed.use(server.url)
        undisturbed.wait()
    config = write_config(tmp_path / "killed")
    journal = JournalConfig(path=config.with_name("journal.sqlite"))
    with Trainers(_ITERATIONS, "one", "other") as trainers:
        for graded in (8, 28):
            with serving(config) as server:
                trainers.use(server.url)
                until(lambda graded=graded: len(trainers.acknowledged) >= graded)
                server.process.send_signal(signal.SIGKILL)
                told = set(trainers.acknowledged)
            assert told <= {key[:2] for key in kept_rewards(journal)}
        assert len(trainers.acknowledged) < 2 * _ITERATIONS
        with serving(config) as server:
            trainers.use(server.url)
            trainers.wait()
    assert trainers.samples == undisturbed.samples
    whole = JournalConfig(path=tmp_path / "whole" / "journal.sqlite")
    assert kept_plans(journal) == kept_plans(whole)
    assert kept_rewards(journal) == kept_rewards(whole)
    reasons = [reason for plan in kept_plans(journal).values() for *_, reason in plan["rows"]]
    assert {*reasons} == {"curriculum", "pool", "easy", "replay"}
    assert len(reasons) == 2 * _ITERATIONS * SLOTS


def test_two_replicas_on_one_journal_store_one_plan_and_answer_the_same(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.new_database()
    config = write_config(tmp_path / "config", validation_fraction=0.2, url=url)
    start = Barrier(4)

    def at_once(work: Any, *arguments: Any, **more: Any) -> Any:
        start.wait(30)
        return work(*arguments, **more)

    with serving(config) as one, serving(config) as other, ThreadPoolExecutor(4) as threads:
        answer = ask(one.client, 0)
        for iteration in range(_ITERATIONS):
            request = grade_request(answer, "", generations=4)
            half = len(request["items"]) // 2
            # Grades arrive while both plan the next iteration, so each may see different grades. One server is asked
            # for the rows first, the other one for their substitutes.
            attempt = 1 + iteration % 4
            asked = [
                threads.submit(at_once, ask, one.client, iteration + 1),
                threads.submit(at_once, substitutes, other.client, iteration + 1, attempt),
            ]
            parts = {"first": request["items"][:half], "second": request["items"][half:]}
            for server, (name, items) in zip((one, other), parts.items(), strict=True):
                body = {**request, "items": items, "request_id": f"{iteration} {name}"}
                threads.submit(at_once, httpx.post, f"{server.url}/grade", json=body, timeout=30)
            answer, others = (future.result() for future in asked)
            assert answer == ask(other.client, iteration + 1)
            assert others == substitutes(one.client, iteration + 1, attempt)
            ids = [[sample["sample_id"] for sample in each["samples"]] for each in (answer, others)]
            assert [place.split(":")[0] for place in ids[0]] == [place.split(":")[0] for place in ids[1]]
        held_out = [ask(server.client, iteration, split="validation") for server, iteration in ((one, 0), (other, 50))]
        assert held_out[0]["samples"] == held_out[1]["samples"]
    assert {*kept_plans(JournalConfig(url=url))} == {("", iteration) for iteration in range(_ITERATIONS + 1)}


def test_without_its_journal_nothing_is_sampled_or_acknowledged(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with serving(write_config(tmp_path / "config", url=url)) as server:
        answer = ask(server.client, 0)
        request = grade_request(answer, "")
        postgres.stop()
        try:
            refused = server.client.post("/grade", json=request)
            sample = server.client.post("/sample", json={"iteration": 1, "batch_size": SLOTS})
            for response in (refused, sample):
                assert (response.status_code, response.json()["code"]) == (503, "unavailable"), response.text
                assert response.headers["Retry-After"] == "2"
            assert server.counter("completions_total") == 0
            assert ask(server.client, 0) == answer  # its plan already exists
            assert good(server.client.get("/healthz")) == {"status": "ok"}
        finally:
            postgres.start()
        results = good(server.client.post("/grade", json=request))["results"]
        assert len(results) == 2 * SLOTS
        assert ask(server.client, 1)["iteration"] == 1
    assert len(kept_rewards(JournalConfig(url=url))) == 2 * SLOTS


def test_without_the_section_a_server_answers_as_the_curriculum_alone_says(tmp_path: Path) -> None:
    plain = write_config(tmp_path / "plain", adaptive=None)
    idle = write_config(tmp_path / "idle", adaptive={"easy": {"dataset": "easy", "share": {"0": 0.0}}})
    curriculum = Curriculum([Stage("all", 100, {"hard": 3, "easy": 1})], {"hard": 60, "easy": 10}, SLOTS, 0)
    with serving(plain) as server, serving(idle) as other:
        assert good(server.client.get("/meta"))["adaptive"] is False
        assert good(other.client.get("/meta"))["adaptive"] is True
        for iteration in range(8):
            body = {"iteration": iteration, "batch_size": SLOTS, "run_id": "run"}
            answers = [each.client.post("/sample", json=body) for each in (server, other)]
            assert len({without_config_id(answer.content) for answer in answers}) == 1
            good(server.client.post("/grade", json=grade_request(good(answers[0]), "run")))
            drawn = [f"{draw.dataset}:{draw.row + 1}" for draw in curriculum.step(iteration)]
            assert [sample["sample_id"].rpartition(":")[0] for sample in answers[0].json()["samples"]] == drawn
    assert not kept_plans(JournalConfig(path=plain.with_name("journal.sqlite")))
