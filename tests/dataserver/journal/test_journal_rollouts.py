"""What the journal keeps of how a completion was sampled, and which group it belongs to."""

from pathlib import Path
from typing import Any

import pytest
from journal_rows import everything, rewarded, row
from sqlalchemy import Engine

from dataserver.serving import Server, a_config, good, serving
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import journal_to_read
from posttrain.dataserver.journal.reader import GroupCell, JournalReader, JournalSummaries
from posttrain.dataserver.journal.writer import JournalWriter


def test_versions_temperature_and_origin_are_kept(writer: JournalWriter, reader: JournalReader):
    told = row(0, attempt=2, lowest_version=118, highest_version=120, temperature=0.9, origin="carried")
    writer.add_durable([told, row(1)])
    kept = [
        (each.attempt, each.lowest_version, each.highest_version, each.temperature, each.origin)
        for each in everything(reader)
    ]
    assert kept == [(2, 118, 120, 0.9, "carried"), (0, None, None, None, None)]


def test_the_row_s_task_is_kept(writer: JournalWriter, reader: JournalReader):
    writer.add_durable([row(0, task="sum"), row(1), row(2, task="a\0b")])
    assert [each.task for each in everything(reader)] == ["sum", None, "a␀b"]


def test_a_substitute_is_a_group_of_its_own(engine: Engine, writer: JournalWriter):
    # The slot's own row has equal rewards, its substitute, here the same row, has not.
    writer.add_durable(rewarded(1.0, 1.0, request_id="a", iteration=3, slot=1))
    writer.add_durable(rewarded(0.0, 1.0, request_id="b", iteration=3, slot=1, attempt=1))
    assert JournalSummaries(engine).groups("run", 0) == [GroupCell("train", "sums", 3, groups=2, zero_variance=1)]


def an_item(server: Server, **more: Any) -> dict[str, Any]:
    (sample,) = server.sample(0, 1).samples
    return {"item_id": "0", "sample_id": sample.sample_id, "completion": "no", "slot": 0, **more}


def test_what_a_trainer_sends_reaches_the_journal(tmp_path: Path):
    config = a_config(tmp_path / "config", limits={"workers": 1})
    with serving(config) as server:
        server.grade([an_item(server)], "plain")
        rollout = {"versions": [120, 118, 119], "temperature": 1, "origin": "substitute"}
        server.grade([an_item(server, attempt=3, rollout=rollout)], "told")
        server.grade([an_item(server, rollout={"versions": [7]})], "short")
        again = {"iteration": 0, "request_id": "told", "items": [an_item(server, attempt=2, rollout=rollout)]}
        assert server.client.post("/grade", json=again).status_code == 409
        assert good(server.client.get("/healthz")) == {"status": "ok"}
        server.process.terminate()
        server.process.wait(30)
    with journal_to_read(JournalConfig(path=config.with_name("journal.sqlite"))) as engine:
        kept = {each.request_id: each for each in everything(JournalReader(engine))}
    assert (kept["plain"].attempt, kept["plain"].lowest_version, kept["plain"].origin) == (0, None, None)
    told = kept["told"]
    assert (told.attempt, told.lowest_version, told.highest_version) == (3, 118, 120)
    assert (told.temperature, told.origin) == (1.0, "substitute")
    assert (kept["short"].lowest_version, kept["short"].highest_version, kept["short"].origin) == (7, 7, "fresh")


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempt": -1},
        {"rollout": {"versions": []}},
        {"rollout": {"versions": [-1]}},
        {"rollout": {"versions": [1] * 17}},
        {"rollout": {"versions": [1], "temperature": -0.1}},
        {"rollout": {"versions": [1], "origin": "stolen"}},
        {"rollout": {"versions": [1], "age": 2}},
    ],
)
def test_what_cannot_be_is_refused(server: Server, wrong: dict[str, Any]):
    body = {"iteration": 0, "request_id": "wrong", "items": [an_item(server, **wrong)]}
    assert server.client.post("/grade", json=body).status_code == 422


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with serving(a_config(tmp_path_factory.mktemp("rollouts") / "config", limits={"workers": 1})) as server:
        yield server
