"""Substitutes over HTTP: requests in any order and split get the same rows, from every server."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataserver.serving import Server, a_config, gold_of, good, serving
from posttrain.dataserver.schemas import Meta, Sample, SampleResponse


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("substitutes") / "config"
    return a_config(folder, substitutes=3, limits={"workers": 1, "batch_size": 8}, seed=4)


@pytest.fixture(scope="module")
def server(config: Path) -> Iterator[Server]:
    with serving(config) as server:
        yield server


def ask(server: Server, iteration: int, slots: Sequence[int], attempt: int) -> SampleResponse:
    body = {"iteration": iteration, "slots": list(slots), "attempt": attempt}
    return SampleResponse.model_validate(good(server.client.post("/sample", json=body)))


def everything(server: Server, iteration: int) -> dict[int, list[Sample]]:
    """The samples of an iteration and of all its substitutes, by attempt."""
    found = {attempt: ask(server, iteration, range(8), attempt).samples for attempt in (1, 2, 3)}
    return {0: server.sample(iteration).samples, **found}


def test_substitutes_keep_slot_and_data_set_and_repeat_no_row(server: Server) -> None:
    found = everything(server, 2)
    for samples in found.values():
        assert [(sample.slot, sample.dataset) for sample in samples] == [
            (sample.slot, sample.dataset) for sample in found[0]
        ]
    for dataset, rows in (("sums", 24), ("words", 20)):
        ids = [sample.sample_id for samples in found.values() for sample in samples if sample.dataset == dataset]
        # Six of eight slots ask for sums: as many rows as 24 training rows allow.
        assert len({*ids}) == len(ids) <= rows
    held_out = {sample.sample_id for sample in server.sample(0, 6, split="validation").samples}
    assert not held_out & {sample.sample_id for samples in found.values() for sample in samples}


def test_order_split_and_server_make_no_difference(server: Server, config: Path) -> None:
    whole = {iteration: everything(server, iteration) for iteration in (0, 5)}
    asked = [(iteration, attempt, slot) for iteration in (0, 5) for attempt in (1, 2, 3) for slot in range(8)]
    random.Random(0).shuffle(asked)
    with serving(config, environment={"PYTHONHASHSEED": "3"}) as other:
        for iteration, attempt, slot in asked:
            slots = [slot, (slot + 5) % 8]
            answer = ask(other, iteration, slots, attempt)
            assert answer.samples == [whole[iteration][attempt][each] for each in slots]
        assert {iteration: everything(other, iteration) for iteration in (5, 0)} == whole


def test_stage_and_end_are_those_of_the_iteration(server: Server) -> None:
    told = {iteration: ask(server, iteration, [3], 1) for iteration in (3, 4, 6)}
    assert {iteration: (answer.stage, answer.exhausted) for iteration, answer in told.items()} == {
        3: ("early", False),
        4: ("late", False),
        6: ("late", True),
    }


def test_a_substitute_is_graded_as_any_other_prompt(server: Server) -> None:
    (sample,) = ask(server, 2, [5], 3).samples
    item = {"item_id": "0", "sample_id": sample.sample_id, "completion": gold_of(sample), "slot": 5}
    (result,) = server.grade([item], "substitute", iteration=2).results
    assert result.reward == 1.0


def test_meta_tells_how_many_there_are(server: Server) -> None:
    meta = Meta.model_validate(good(server.client.get("/meta")))
    assert (meta.protocol_version, meta.substitutes, meta.lag) == ("1.1", 3, None)


@pytest.mark.parametrize(
    ("body", "status", "field", "told"),
    [
        ({"slots": [1], "attempt": 4}, 400, None, "each prompt has 3"),
        ({"slots": [1, 8], "attempt": 1}, 422, None, "there is no slot 8"),
        ({"slots": list(range(9)), "attempt": 1}, 422, None, "limits.batch_size"),
        ({"slots": [1], "attempt": 0}, 422, "attempt", "attempt"),
        ({"slots": [1]}, 422, "attempt", "require each other"),
        ({"slots": [], "attempt": 1}, 422, "attempt", "require each other"),
        ({"attempt": 1, "batch_size": 1}, 422, "attempt", "require each other"),
        ({}, 422, "batch_size", "or slots"),
        ({"slots": [1], "attempt": 1, "batch_size": 1}, 422, "batch_size", "not both"),
        ({"slots": [1], "attempt": 1, "offset": 1}, 422, "offset", "excludes"),
        ({"slots": [1], "attempt": 1, "split": "validation"}, 422, "split", "training"),
        ({"slots": [1, 1], "attempt": 1}, 422, "slots", "twice"),
        ({"slots": ["a"] * 1000, "attempt": 1}, 422, "slots.0", "integer"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    server: Server, body: dict[str, Any], status: int, field: str | None, told: str
) -> None:
    answer = server.client.post("/sample", json={"iteration": 0, **body})
    assert answer.status_code == status
    problem = answer.json()
    assert told in problem["message"]
    assert problem["code"] == ("no_substitute" if status == 400 else "bad_request")
    assert problem["fields"][:1] == ([field] if field else [])


def test_a_server_without_substitutes_says_so(tmp_path: Path) -> None:
    with serving(a_config(tmp_path / "config", substitutes=0, limits={"workers": 1})) as server:
        answer = server.client.post("/sample", json={"iteration": 0, "slots": [1], "attempt": 1})
        assert answer.status_code == 400
        assert "substitutes" in answer.json()["message"]
        assert good(server.client.get("/meta"))["substitutes"] == 0
