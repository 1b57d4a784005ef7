"""The server without HTTP: stages, changed data, metrics and the journal."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dataserver.serving import a_config, gold_of
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.reader import JournalReader, RowFilter
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import GradeItem, GradeRequest, Sample, SampleRequest
from posttrain.dataserver.server import DataServer
from posttrain.errors import ConfigError
from posttrain.web.refusal import Refusal

T = TypeVar("T")
CHEAP = {"orders": {"type": "regex", "pattern": "right"}}
"""Replaces the grader that obeys completions, so that no user code is loaded."""


def serve(config: Path, use: Callable[[DataServer], Awaitable[T]]) -> T:
    """The result of `use` on a server with this config, which is closed afterwards."""

    async def go() -> T:
        server = DataServer(Loaded.read(load_config(config, DataserverConfig, []), print))
        try:
            return await use(server)
        finally:
            await server.close()

    return asyncio.run(go())


def the_config(folder: Path, **changes: Any) -> Path:
    return a_config(folder, **{"graders": CHEAP, "limits": {"workers": 1}, **changes})


async def sampled(server: DataServer, iteration: int, batch_size: int = 8, **more: Any) -> list[Sample]:
    request = SampleRequest(iteration=iteration, batch_size=batch_size, **more)
    return (await server.service.sample(request)).samples


def request(iteration: int, *items: tuple[str, str], **more: Any) -> GradeRequest:
    """A request to grade (sample id, completion) pairs."""
    written = [
        GradeItem(item_id=str(number), sample_id=sample_id, completion=completion, **more)
        for number, (sample_id, completion) in enumerate(items)
    ]
    return GradeRequest(iteration=iteration, request_id=f"{iteration} {items}"[:200], items=written)


def test_past_the_last_stage_nothing_is_asked_where_the_config_says_so(tmp_path: Path) -> None:
    async def use(server: DataServer) -> None:
        assert len(await sampled(server, 5)) == 8
        for iteration in (6, 7, 2**39):
            with pytest.raises(Refusal, match=f"iteration {iteration} is beyond the last stage, which ends at 6"):
                await sampled(server, iteration)
        # A run's last evaluation comes after its last step.
        (held_out,) = await sampled(server, 6, 1, split="validation")
        graded = await server.service.grade(request(6, (held_out.sample_id, "right")))
        assert graded.results[0].status == "ok"

    serve(the_config(tmp_path / "config", after_last_stage="refuse"), use)


def test_iterations_between_two_draws_are_refused(tmp_path: Path) -> None:
    async def use(server: DataServer) -> None:
        assert len(await sampled(server, 2)) == 8
        with pytest.raises(Refusal, match="iteration 3 is not drawn: only multiples of iteration_stride 2 are"):
            await sampled(server, 3)

    serve(the_config(tmp_path / "config", iteration_stride=2), use)


def test_a_row_that_changed_is_not_graded_by_its_new_gold(tmp_path: Path) -> None:
    config = the_config(tmp_path / "config")

    async def look(server: DataServer) -> tuple[str, list[Sample]]:
        return server.service.identity, await sampled(server, 5, 2)

    identity, (changed, same) = serve(config, look)
    data = config.with_name("words.jsonl")
    data.write_text(data.read_text().replace(f'"#### {gold_of(changed)}"', '"#### another"'))

    async def use(server: DataServer) -> list[Any]:
        with pytest.raises(Refusal, match="config, data or graders have changed since the run started"):
            await server.service.sample(SampleRequest(iteration=5, batch_size=8, config_id=identity))
        asked = [(changed.sample_id, "another"), (changed.sample_id, gold_of(changed)), (same.sample_id, gold_of(same))]
        return (await server.service.grade(request(5, *asked))).results

    results = serve(config, use)

    reason = f"the row of sample '{changed.sample_id}' has changed since it was sampled"
    assert [(result.status, result.reason) for result in results] == [("error", reason), ("error", reason), ("ok", "")]


def test_a_grader_that_cannot_ask_its_service_is_told_at_the_start(tmp_path: Path) -> None:
    service = {"type": "http", "url": "http://127.0.0.1:1", "token_env": "NOT_SET_ANYWHERE"}

    with pytest.raises(ConfigError, match=r"graders\.orders: the environment variable NOT_SET_ANYWHERE is not set"):
        serve(
            the_config(tmp_path / "config", graders={"orders": service}),
            lambda server: server.warm_up(lambda *progress: None),
        )


def test_the_stage_decides_the_weights(tmp_path: Path) -> None:
    stages = [
        {"name": "early", "until_step": 2, "mix": {"words": 1, "sums": 1}},
        {"name": "late", "until_step": 4, "mix": {"words": 1}, "grading": {"words": {"graders": {"orders": 1}}}},
    ]

    async def use(server: DataServer) -> list[float | None]:
        sample = next(sample for sample in await sampled(server, 0) if sample.dataset == "words")
        rewards = []
        for iteration in (0, 1, 2, 3, 4, 0):
            graded = await server.service.grade(request(iteration, (sample.sample_id, gold_of(sample))))
            rewards.append(graded.results[0].reward)
        return rewards

    # The gold satisfies string_exact, which has three quarters of the weight, but does not contain "right".
    assert serve(the_config(tmp_path / "config", stages=stages), use) == [0.75, 0.75, 0.0, 0.0, 0.0, 0.75]


def test_what_was_graded_is_counted(tmp_path: Path) -> None:
    async def use(server: DataServer) -> str:
        sample = (await sampled(server, 5))[0]
        asked = [(sample.sample_id, gold_of(sample)), (sample.sample_id, "wrong"), ("unknown", "wrong")]
        await server.service.grade(request(5, *asked))
        return server.metrics.exposition().decode()

    lines = serve(the_config(tmp_path / "config"), use).splitlines()

    assert 'dataserver_completions_total{dataset="words",stage="late",status="ok"} 2.0' in lines
    assert 'dataserver_completions_total{dataset="unknown",stage="late",status="error"} 1.0' in lines
    assert 'dataserver_reward_sum{dataset="words",stage="late"} 0.75' in lines
    assert 'dataserver_grader_scores_total{grader="string_exact",status="ok"} 2.0' in lines
    assert "dataserver_waiting_completions 0.0" in lines


def test_what_was_graded_is_kept_with_all_that_it_takes_to_judge_it_again(tmp_path: Path) -> None:
    config = the_config(tmp_path / "config")

    async def use(server: DataServer) -> Sample:
        sample = (await sampled(server, 5))[3]
        (held_out,) = await sampled(server, 5, 1, split="validation")
        asked = request(5, (sample.sample_id, gold_of(sample)), (held_out.sample_id, "x"), ("unknown", "x"), slot=3)
        await server.service.grade(asked)
        return sample

    sample = serve(config, use)
    database = open_database(JournalConfig(path=config.with_name("journal.sqlite")))
    row, held_out = JournalReader(database).rows(RowFilter())
    database.dispose()

    assert (row.iteration, row.stage, row.dataset, row.split, row.slot) == (5, "late", "words", "train", 3)
    assert (row.sample_id, row.prompt) == (sample.sample_id, sample.messages[-1].content)
    assert (row.gold, row.completion, row.status, row.reward) == (gold_of(sample), gold_of(sample), "ok", 0.75)
    assert {name: each.score for name, each in row.components.items()} == {"string_exact": 1.0, "orders": 0.0}
    assert row.row_key == sample.sample_id.split(":")[1]
    assert (held_out.split, held_out.reward) == ("validation", 0.0)
