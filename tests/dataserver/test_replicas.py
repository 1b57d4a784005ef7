"""Several servers with one config behind a load balancer: all answer alike, and nothing is stored twice."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from dataserver.postgres import PostgresServer
from dataserver.serving import a_config, good, serving, until
from dataserver.trainer import rows_of, train


def test_replicas_with_one_database_answer_as_one_server(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    config = a_config(tmp_path / "config", journal={"url": url})
    # Both start at once, so that they also race to create the tables.
    with serving(config, wait=False) as one, serving(config, wait=False) as other:
        for server in (one, other):
            until(server.ready_file.exists, server.process, server.log)
        assert good(one.client.get("/meta")) == good(other.client.get("/meta"))
        in_turns = train(one.url, other.url)
        with ThreadPoolExecutor() as threads:
            # A balancer may also send a request to both.
            at_once = list(threads.map(train, [one.url, other.url]))
        assert [server.end(signal.SIGTERM) for server in (one, other)] == [0, 0]

    assert at_once == [in_turns, in_turns]
    with psycopg.connect(url.replace("+psycopg", "")) as database:
        query = "SELECT request_id, item_id, sample_id, completion, status, reward FROM grades"
        assert sorted(database.execute(query.encode()).fetchall()) == rows_of(in_turns)
