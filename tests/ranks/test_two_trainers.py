"""Two trainers on one dataserver do not affect each other."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from dataserver.adaptive.adaptive_trainers import SLOTS, kept_rewards, write_config
from dataserver.serving import serving
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.schemas import GradeItem, Sample
from posttrain.rl.client.client import DataserverClient
from rl.rl_runs import folder_of, journal, lines, run, started, wait_for_step, write_run
from running import metrics

ITERATIONS = 10
# Each run has its own completions and thus its own grades: what one has solved the other has not.
RUNS = ("one", "other")
Seen = dict[int, tuple[list[Any], list[float | None]]]


def answers(run_id: str, sample: Sample) -> Sequence[str]:
    """Two completions of a prompt, the same in every attempt of the same run."""
    name, number = sample.messages[-1].content.split()
    solves = blake2b(f"{run_id} {name} {number}".encode(), digest_size=1).digest()[0] % 3
    return [number if solves == 0 or (solves == 1 and which) else "no" for which in range(2)]


def train(url: str, run_id: str, iterations: Sequence[int] = range(ITERATIONS)) -> Seen:
    """Prompts and rewards of these iterations, through the toolkit's own client."""
    seen: Seen = {}
    with DataserverClient(url, run_id=run_id, retry_seconds=30) as client:
        client.meta()
        for iteration in iterations:
            samples = client.sample(iteration, 0, SLOTS)
            items = [
                GradeItem(
                    item_id=f"{sample.slot}-{number}", sample_id=sample.sample_id, completion=said, slot=sample.slot
                )
                for sample in samples
                for number, said in enumerate(answers(run_id, sample))
            ]
            results = client.grade(iteration, f"train-{iteration}", items)
            seen[iteration] = [sample.model_dump() for sample in samples], [result.reward for result in results]
    return seen


def train_interrupted(url: str, run_id: str) -> Seen:
    """Train as if killed after iteration 6 and resumed from a checkpoint of iteration 4."""
    return train(url, run_id, range(7)) | train(url, run_id, range(4, ITERATIONS))


def test_two_runs_of_an_adaptive_server_get_what_each_would_get_alone(tmp_path: Path) -> None:
    undisturbed: dict[str, Seen] = {}
    for run_id in RUNS:
        with serving(write_config(tmp_path / run_id)) as server:
            undisturbed[run_id] = train(server.url, run_id)
    with serving(write_config(tmp_path / "both")) as server, ThreadPoolExecutor() as threads:
        one = threads.submit(train, server.url, "one")
        other = threads.submit(train_interrupted, server.url, "other")
        both = {"one": one.result(), "other": other.result()}

    assert both == undisturbed
    # The two runs get different prompts: what was solved is not asked again.
    asked = [[sample["sample_id"] for sample in seen[ITERATIONS - 1][0]] for seen in both.values()]
    assert asked[0] != asked[1]


def test_two_servers_with_one_journal_file_keep_every_grade_of_both(tmp_path: Path) -> None:
    config = write_config(tmp_path / "both", adaptive=None)
    with serving(config) as first, serving(config) as second, ThreadPoolExecutor() as threads:
        trained = list(threads.map(train, (first.url, second.url), RUNS))
        assert [server.end(signal.SIGTERM) for server in (first, second)] == [0, 0]

    kept: Mapping[Any, Any] = kept_rewards(JournalConfig(path=config.with_name("journal.sqlite")))
    assert len(kept) == 2 * ITERATIONS * SLOTS * 2
    for run_id, seen in zip(RUNS, trained, strict=True):
        rewards = sorted(reward for (owner, *_), (*_, reward) in kept.items() if owner == run_id)
        assert rewards == sorted(reward for _, graded in seen.values() for reward in graded if reward is not None)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple[Path, str]]:
    """The folder of a dataserver's config, and the server's address."""
    folder = tmp_path_factory.mktemp("shared")
    write_run(folder, tiny_model)
    with serving(folder / "data.yaml") as server:
        yield folder, server.url


SEEDS = {"one": 0, "other": 5}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Path]:
    """The configs of two runs, each with its own dataserver."""
    configs = {}
    for name, seed in SEEDS.items():
        configs[name] = write_run(tmp_path_factory.mktemp(name), tiny_model, name=name, training={"seed": seed})
        run(configs[name])
    return configs


@pytest.mark.long
def test_two_real_trainers_on_one_server_train_as_if_each_had_it_for_itself(
    shared: tuple[Path, str], alone: dict[str, Path], tiny_model: Path
) -> None:
    folder, url = shared
    configs = {
        name: write_run(folder, tiny_model, name=name, training={"seed": seed}, dataserver={"config": None, "url": url})
        for name, seed in SEEDS.items()
    }
    with started(configs["one"]) as one:
        with started(configs["other"]) as other:
            wait_for_step(configs["other"], 3, other)
            other.kill()
            other.wait()
        run(configs["other"], "--resume")
        assert one.wait(200) == 0

    for name, config in configs.items():
        mine, undisturbed = folder_of(config), folder_of(alone[name])
        assert metrics(mine) == metrics(undisturbed)
        assert lines(mine / "completions.jsonl") == lines(undisturbed / "completions.jsonl")
        for file in ("adapter_model.safetensors", "checkpoint-8/optimizer.pt"):
            assert (mine / file).read_bytes() == (undisturbed / file).read_bytes()
    # The server's journal has the completions of both runs; the rewards of a resumed step are there once.
    together = set(journal(configs["one"]))
    assert together == set(journal(alone["one"])) | set(journal(alone["other"]))
