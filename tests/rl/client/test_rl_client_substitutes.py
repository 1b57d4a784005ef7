"""Substitutes by the client: joined from pages, refused if anything is wrong, and not asked of old servers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dataserver.serving import Server, a_config, serving
from posttrain.dataserver.schemas import SampledBy
from posttrain.errors import ServerError
from posttrain.rl.client.client import DataserverClient
from rl.rl_serving import Fault, changed, items_for, spoiling


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that answers three prompts in a request."""
    config = a_config(tmp_path_factory.mktemp("substitutes") / "config", limits={"workers": 1, "batch_size": 3})
    with serving(config) as server:
        yield server


def a_client(url: str, **options: Any) -> DataserverClient:
    return DataserverClient(url, **{"run_id": "a run", "retry_seconds": 0.2, **options})


def test_pages_are_put_together_in_the_order_of_the_slots(server: Server) -> None:
    slots = [7, 0, 3, 2, 5, 1, 4, 6]
    with a_client(server.url) as client:
        found = client.substitutes(1, slots, 2)
        singles = [client.substitutes(1, [slot], 2)[0] for slot in slots]
        base = client.sample(1, 0, 8)
        assert client.substitutes(1, [], 1) == []
    assert [sample.slot for sample in found] == slots
    assert found == singles
    assert [sample.dataset for sample in found] == [base[slot].dataset for slot in slots]
    assert not {sample.sample_id for sample in found} & {sample.sample_id for sample in base}


WRONG: dict[str, tuple[Fault, str]] = {
    "one missing": (changed(lambda told: told["samples"].pop() and None), "slots 5 instead of 5, 2"),
    "slot order": (changed(lambda told: told["samples"].reverse()), "slots 2, 5 instead of 5, 2"),
    "another iteration": (changed(lambda told: told.update(iteration=4)), "iteration 4 instead of 1"),
    "no data set": (changed(lambda told: told["samples"][0].pop("dataset") and None), r"samples\.0\.dataset"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_never_trained_on(server: Server, name: str) -> None:
    fault, message = WRONG[name]
    with spoiling(server.url) as (url, proxy), a_client(url, retry_seconds=30.0) as client:
        right = client.substitutes(1, [5, 2], 1)
        proxy.faults = [fault, fault]
        assert client.substitutes(1, [5, 2], 1) == right
        assert client.retries == 2
        proxy.always = fault
        with a_client(url) as impatient, pytest.raises(ServerError, match=message):
            impatient.substitutes(1, [5, 2], 1)


def test_more_than_the_server_has_is_said_before_it_is_asked(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        with pytest.raises(ServerError, match="has 4 substitutes for each prompt, but number 5 is needed"):
            client.substitutes(1, [0], 5)
        assert [path for path, *_ in proxy.requests] == ["/meta"]


OLD_SAMPLE = {"iteration", "batch_size", "offset", "split", "config_id", "run_id"}
OLD_ITEM = {"item_id", "sample_id", "completion", "completion_tokens", "truncated", "slot"}


def test_a_server_of_protocol_1_0_is_sent_nothing_that_it_does_not_know(server: Server) -> None:
    def older(meta: dict[str, Any]) -> None:
        meta["protocol_version"] = "1.0"
        del meta["substitutes"], meta["lag"]

    rollout = SampledBy(versions=[3], temperature=0.9, origin="carried")
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        proxy.describing = changed(older)
        meta = client.meta()
        assert (meta.protocol_version, meta.substitutes, meta.lag) == ("1.0", 0, None)
        samples = client.sample(1, 0, 2)
        items = [item.model_copy(update={"rollout": rollout}) for item in items_for(samples, "gold")]
        assert [result.reward for result in client.grade(1, "old", items)] == [1.0, 1.0]
        with pytest.raises(ServerError, match="there are none"):
            client.substitutes(1, [0], 1)
    bodies = {path: json.loads(body) for path, _, body in proxy.requests if body}
    assert {*bodies["/sample"]} <= OLD_SAMPLE
    assert all({*item} <= OLD_ITEM for item in bodies["/grade"]["items"])


@pytest.mark.parametrize("change", [{"substitutes": -1}, {"substitutes": None}, {"lag": 0}, {"lag": "2"}])
def test_a_description_with_impossible_numbers_is_refused(server: Server, change: dict[str, Any]) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        proxy.describing = changed(lambda meta: meta.update(change))
        with pytest.raises(ServerError, match="/meta"):
            client.meta()
