"""A network that loses, repeats, delays and cuts: rewards stay what they are, and nothing is graded or kept twice."""

import signal
from pathlib import Path

from dataserver.chaos import FAULTS, chaos_before
from dataserver.serving import a_config, serving
from dataserver.trainer import grade_request, journal, rows_of, train

SECONDS = 0.7
"""After which the trainer asks again."""


def test_a_bad_network_changes_no_reward_and_repeats_no_work(tmp_path: Path) -> None:
    with serving(a_config(tmp_path / "quiet")) as server:
        quiet = train(server.url)

    config = a_config(tmp_path / "chaos")
    with serving(config) as server, chaos_before(server.port, seed=5, late_seconds=SECONDS) as (url, proxy):
        seen = train(url, timeout=SECONDS)
        assert server.end(signal.SIGTERM) == 0

    assert seen == quiet
    assert set(proxy.done) == set(FAULTS)
    assert journal(config.parent) == rows_of(quiet)
    asked = {
        (item["sample_id"], item["completion"])
        for iteration, step in enumerate(quiet)
        for item in grade_request(iteration, step.sampled)["items"]
    }
    assert len(config.with_name("calls").read_text().splitlines()) == len(asked)
