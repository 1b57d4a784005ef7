"""A network that loses, repeats, delays and truncates: rewards stay the same, and nothing is graded or stored twice."""

import signal
from pathlib import Path

from dataserver.chaos import FAULTS, chaos_before
from dataserver.serving import a_config, serving
from dataserver.trainer import grade_request, journal, rows_of, train

SECONDS = 0.7
"""The trainer's timeout, after which it retries."""


def test_a_bad_network_changes_no_reward_and_repeats_no_work(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    with serving(config) as server, chaos_before(server.port, seed=5, late_seconds=SECONDS) as (url, proxy):
        seen = train(url, timeout=SECONDS)
        requests = [grade_request(iteration, step.sampled) for iteration, step in enumerate(seen)]
        asked = [item for request in requests for item in request["items"]]
        calls = config.with_name("calls").read_text().splitlines()
        assert train(server.url) == seen
        assert server.end(signal.SIGTERM) == 0

    assert set(proxy.done) == set(FAULTS)
    assert len(calls) == len({(item["sample_id"], item["completion"]) for item in asked})
    for item, (_, status, reward) in zip(asked, (result for step in seen for result in step.rewards), strict=True):
        assert (status, reward) == ("ok", 0.0 if "wrong" in item["completion"] else 1.0)
    assert journal(config.parent) == rows_of(seen)
