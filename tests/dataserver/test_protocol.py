"""What a trainer relies on: equal requests get equal answers, and no item affects another."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dataserver.serving import Server, a_config, gold_of, serving
from posttrain.dataserver.schemas import Meta, Sample

EARLY, LATE, PAST = 3, 4, 6
"""The last iteration of the first stage, the first of the last stage, and the first past its end."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_config(
        tmp_path_factory.mktemp("protocol") / "config", limits={"workers": 2, "batch_size": 12, "items": 40}
    )


@pytest.fixture(scope="module")
def server(config: Path) -> Iterator[Server]:
    with serving(config, environment={"PYTHONHASHSEED": "1"}) as server:
        yield server


def pages(server: Server, iteration: int, *sizes: int) -> list[Sample]:
    """Consecutive samples of an iteration, requested in pages of these sizes."""
    samples: list[Sample] = []
    for size in sizes:
        samples += server.sample(iteration, size, offset=len(samples)).samples
    return samples


def refusal(server: Server, path: str, status: int, **body: Any) -> str:
    """Why a request is refused."""
    response = server.client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()["message"]


def test_meta_tells_what_a_trainer_checks(server: Server) -> None:
    meta = Meta.model_validate(server.client.get("/meta").json())

    assert (meta.protocol_version, meta.prompts_per_iteration, meta.total_iterations) == ("1.1", 8, 6)
    assert [(stage.name, stage.from_iteration, stage.until_iteration) for stage in meta.stages] == [
        ("early", 0, 4),
        ("late", 4, 6),
    ]
    assert meta.stages[0].mix == {"sums": 0.75, "words": 0.25}
    assert meta.stages[1].graders == {"words": {"string_exact": 0.75, "orders": 0.25}}
    assert [(dataset.name, dataset.rows + dataset.validation_rows) for dataset in meta.datasets] == [
        ("sums", 30),
        ("words", 20),
    ]
    assert (meta.limits.max_batch_size, meta.limits.max_items) == (12, 40)


def test_equal_requests_have_equal_answers_in_every_order_and_process(server: Server, config: Path) -> None:
    iterations = [*range(8), 2**39]
    asked = {iteration: server.sample(iteration) for iteration in iterations}
    shuffled = random.Random(0).sample(iterations, len(iterations))

    with serving(config, environment={"PYTHONHASHSEED": "2"}) as other:
        assert {iteration: other.sample(iteration) for iteration in shuffled} == asked
        validation = [each.sample(0, 6, split="validation") for each in (server, other)]

    assert validation[0] == validation[1]
    assert {iteration: server.sample(iteration) for iteration in shuffled} == asked


def test_pages_add_up_to_the_whole_and_are_as_long_as_asked(server: Server) -> None:
    for iteration in (0, EARLY, LATE, PAST):
        whole = pages(server, iteration, 8)

        assert [sample.slot for sample in whole] == list(range(8))
        assert pages(server, iteration, 3, 4, 1) == pages(server, iteration, *[1] * 8) == whole


def test_the_mix_of_the_stage_decides_the_data_sets(server: Server) -> None:
    drawn = {iteration: [sample.dataset for sample in pages(server, iteration, 8)] for iteration in range(8)}

    assert [datasets.count("sums") for datasets in drawn.values()] == [6, 6, 6, 6, 0, 0, 0, 0]


def test_a_stage_begins_where_the_one_before_ends(server: Server) -> None:
    told = {iteration: server.sample(iteration, 1) for iteration in (0, EARLY, LATE, PAST - 1, PAST, PAST + 1)}

    assert {iteration: (answer.stage, answer.exhausted) for iteration, answer in told.items()} == {
        0: ("early", False),
        EARLY: ("early", False),
        LATE: ("late", False),
        PAST - 1: ("late", False),
        PAST: ("late", True),
        PAST + 1: ("late", True),
    }


def test_no_gold_leaves_the_server(server: Server) -> None:
    for iteration in range(8):
        answer = server.client.post("/sample", json={"iteration": iteration, "batch_size": 8})

        golds = [gold_of(Sample.model_validate(sample)) for sample in answer.json()["samples"]]
        assert not [gold for gold in [*golds, "####", "answer"] if gold.encode() in answer.content]


def test_the_validation_rows_are_the_same_at_all_iterations_and_never_trained_on(server: Server) -> None:
    meta = Meta.model_validate(server.client.get("/meta").json())
    held_out = meta.datasets[0].validation_rows

    asked = [server.sample(iteration, held_out, split="validation").samples for iteration in (0, LATE, PAST)]

    assert asked[0] == asked[1] == asked[2]
    validation = {sample.sample_id for sample in asked[0]}
    trained = {sample.sample_id for iteration in range(40) for sample in pages(server, iteration % 4, 8)}
    assert len(validation) == held_out > 0
    assert not validation & trained


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (422, {"batch_size": 9}, "offset 0 + batch_size 9 is more than the 8 prompts"),
        (422, {"batch_size": 2, "offset": 7}, "offset 7 + batch_size 2 is more than the 8 prompts"),
        (422, {"batch_size": 13}, "at most 12 prompts (limits.batch_size)"),
        (422, {"batch_size": 12, "split": "validation"}, "that the validation split has"),
        (422, {"batch_size": 0}, "batch_size: Input should be greater than or equal to 1"),
        (422, {"batch_size": 1, "iteration": -1}, "iteration: Input should be greater than or equal to 0"),
        (422, {"batch_size": 1, "iteration": 2**40}, "is beyond the last stage"),
        (422, {"batch_size": 1, "offset": 10**9}, "is more than the 8 prompts"),
        (422, {"batch_size": 1, "offset": 10**30}, "offset: Input should be less than or equal to 1099511627776"),
        (422, {"batch_size": 1, "split": "test"}, "split: Input should be 'train' or 'validation'"),
        (422, {"batch_size": 1, "seed": 3}, "seed: Extra inputs are not permitted"),
        (409, {"batch_size": 1, "config_id": "another"}, "the request expects another: config, data or graders"),
    ],
)
def test_what_cannot_be_sampled_is_refused(server: Server, status: int, body: dict[str, Any], message: str) -> None:
    assert message in refusal(server, "/sample", status, **{"iteration": 0, **body})


def test_rewards_come_in_the_order_of_the_items(server: Server) -> None:
    samples = pages(server, 0, 8)
    items = [
        {"item_id": f"{slot}-{try_}", "sample_id": sample.sample_id, "completion": text, "slot": slot}
        for slot, sample in enumerate(samples)
        for try_, text in enumerate((gold_of(sample), "wrong", f"the answer is {gold_of(sample)}"))
    ]
    random.Random(0).shuffle(items)

    answer = server.grade(items, "in order")

    assert [result.item_id for result in answer.results] == [item["item_id"] for item in items]
    rewards = {result.item_id: result.reward for result in answer.results}
    for slot, sample in enumerate(samples):
        # In `words`, string_exact has three quarters of the weight and allows no text around the answer.
        expected = [1.0, 0.0, 1.0 if sample.dataset == "sums" else 0.25]
        assert [rewards[f"{slot}-{try_}"] for try_ in range(3)] == expected
    assert (answer.iteration, answer.stage, answer.request_id) == (0, "early", "in order")


def test_an_item_that_cannot_be_graded_costs_the_others_nothing(server: Server) -> None:
    sample, other = pages(server, 0, 2)
    name, row, digest = sample.sample_id.rsplit(":", 2)
    right = {"completion": gold_of(sample)}
    items = {
        "good": {"sample_id": sample.sample_id, **right},
        "unknown": {"sample_id": "nothing", **right},
        "other data set": {"sample_id": f"nosuch:{row}:{digest}", **right},
        "other row": {"sample_id": f"{name}:999999:{digest}", **right},
        "negative row": {"sample_id": f"{name}:-1:{digest}", **right},
        "row of another": {"sample_id": f"{name}:{other.sample_id.split(':')[1]}:{digest}", **right},
        "stale": {"sample_id": f"{name}:{row}:00000000", **right},
        "colons": {"sample_id": ":::::", **right},
        "raises": {"sample_id": sample.sample_id, "completion": "raise as told"},
        "dies": {"sample_id": sample.sample_id, "completion": "exit now"},
        "abstains": {"sample_id": sample.sample_id, "completion": "abstain for good"},
        "also good": {"sample_id": other.sample_id, "completion": gold_of(other)},
    }

    results = server.grade([{"item_id": name, **item} for name, item in items.items()], "some bad").results

    told = {result.item_id: (result.status, result.reward, result.reason[:45]) for result in results}
    assert told == {
        "good": ("ok", 1.0, ""),
        "unknown": ("error", None, "unknown sample 'nothing'"),
        "other data set": ("error", None, f"unknown sample 'nosuch:{row}:{digest}'"[:45]),
        "other row": ("error", None, f"unknown sample '{name}:999999:{digest}'"[:45]),
        "negative row": ("error", None, f"unknown sample '{name}:-1:{digest}'"[:45]),
        "row of another": ("error", None, "the row of sample 'sums:"[:24] + told["row of another"][2][24:]),
        "stale": ("error", None, "the row of sample 'sums:"[:24] + told["stale"][2][24:]),
        "colons": ("error", None, "unknown sample ':::::'"),
        "raises": ("error", None, "orders: ValueError: as told"),
        "dies": ("error", None, "orders: the grading process died (exit code "[:44] + told["dies"][2][44:]),
        "abstains": ("abstain", None, "orders: for good"),
        "also good": ("ok", 1.0, ""),
    }


def test_held_out_rows_are_graded_alike_in_all_stages(server: Server) -> None:
    sample = server.sample(0, 1, split="validation").samples[0]
    items = [{"item_id": "a", "sample_id": sample.sample_id, "completion": gold_of(sample)}]

    answers = [server.grade(items, f"held out {iteration}", iteration) for iteration in (0, LATE, PAST)]

    assert [answer.results[0].reward for answer in answers] == [1.0, 1.0, 1.0]
    assert [answer.stage for answer in answers] == ["early", "late", "late"]


@pytest.mark.parametrize(
    ("status", "change", "message"),
    [
        (422, {"items": []}, "items: List should have at least 1 item"),
        (422, {"items": [{}] * 3}, "items.0.item_id: Field required"),
        (422, {"iteration": -1}, "iteration: Input should be greater than or equal to 0"),
        (422, {"request_id": ""}, "request_id: String should have at least 1 character"),
        (422, {"request_id": "x" * 201}, "request_id: String should have at most 200 characters"),
        (409, {"config_id": "another"}, "the request expects another"),
    ],
)
def test_a_grade_request_that_is_wrong_as_a_whole_is_refused(
    server: Server, status: int, change: dict[str, Any], message: str
) -> None:
    items = [{"item_id": "a", "sample_id": "b", "completion": "c"}]

    assert message in refusal(
        server, "/grade", status, **{"iteration": 0, "request_id": "wrong", "items": items, **change}
    )


def test_an_item_id_may_stand_in_a_request_once(server: Server) -> None:
    item = {"item_id": "twice", "sample_id": "b", "completion": "c"}

    message = refusal(server, "/grade", 422, iteration=0, request_id="double", items=[item, item])

    assert message == "item_id 'twice' appears more than once in the request"


def test_a_request_holds_so_many_items_at_most(server: Server) -> None:
    items = [{"item_id": str(number), "sample_id": "b", "completion": "c"} for number in range(41)]

    message = refusal(server, "/grade", 422, iteration=0, request_id="many", items=items)

    assert message == "the request has 41 items; at most 40 are allowed (limits.items)"
    assert len(server.grade(items[:40], "many").results) == 40


def test_a_request_id_names_one_request(server: Server) -> None:
    sample = pages(server, 0, 1)[0]
    item = {"item_id": "a", "sample_id": sample.sample_id, "completion": "one"}
    first = server.grade([item], "named")

    assert server.grade([item], "named") == first
    changed = {"iteration": 0, "request_id": "named", "items": [{**item, "completion": "two"}]}
    assert refusal(server, "/grade", 409, **changed) == "request_id 'named' was already used for other content"
    assert refusal(server, "/grade", 409, **{**changed, "iteration": 1, "items": [item]})
    for more in ({"slot": 1}, {"completion_tokens": 1}, {"truncated": False}):
        assert refusal(server, "/grade", 409, **{**changed, "items": [{**item, **more}]})
    # Another run may use the same request id.
    assert server.grade(changed["items"], "named", run_id="other").results[0].reward == 0.0


def test_workers_that_are_killed_are_replaced(server: Server) -> None:
    sample = pages(server, 0, 1)[0]
    for round_ in range(3):
        warm = {"item_id": "a", "sample_id": sample.sample_id, "completion": f"warm {round_}"}
        server.grade([warm], f"warm {round_}")
        for process in server.family():
            # Workers are grandchildren: the server's forkserver starts them.
            if process.ppid() in [child.pid for child in psutil.Process(server.process.pid).children()]:
                process.kill()
        items = [{**warm, "item_id": str(number), "completion": f"{round_} {number}"} for number in range(20)]
        begin = time.monotonic()

        results = server.grade(items, f"after {round_}").results

        assert [result.status for result in results] == ["ok"] * 20
        assert time.monotonic() - begin < 5
