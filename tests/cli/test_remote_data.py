"""Every command that reads data by path takes the address of data in a store."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import contents, the_one_error
from typer.testing import CliRunner

from posttrain.cli import data, dpo, sft
from posttrain.config.sections.datasets import ColumnsConfig
from posttrain.config.sections.generation import AnsweringConfig
from posttrain.data.readers.remote import listed
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.prompts import FilePromptsConfig
from posttrain.dataserver.data.loading import load_datasets
from posttrain.evaluate.prompts import read_prompts
from posttrain.evaluate.tasks.base import Setting
from posttrain.evaluate.tasks.choice import ChoiceTaskConfig
from posttrain.pipeline.named_files import file_digests
from posttrain.pipeline.overlap import prompts_in
from posttrain.predict.inputs import match_files, read_inputs
from posttrain.synthesis.config import DecontaminateConfig

pytestmark = pytest.mark.extras


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


SUMS = [{"prompt": f"sums {number}", "completion": f"it is {number}", "answer": str(number)} for number in range(8)]
PAIRS = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no idea"} for row in SUMS]


@pytest.fixture
def rows(store) -> None:
    """`s3://rows/sums`, 8 rows in two shards, and the same as pairs in one file."""
    store.put({"sums/1.jsonl": lines(SUMS[:3]), "sums/2.jsonl": lines(SUMS[3:]), "pairs.jsonl": lines(PAIRS)})


def plan_of(main: Any, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--dry-run"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stderr


def test_training_reads_shards_of_a_store_as_it_reads_local_ones(rows, folder: Path, edit_config: Callable):
    local = plan_of(sft.main, "run.yaml")
    edit_config("{path: sums.jsonl}", "{path: s3://rows/sums/*.jsonl}")
    remote = plan_of(sft.main, "run.yaml")

    assert "s3://rows/sums/*.jsonl: 2 files, in the order of their names" in remote
    assert "tokenising sums (s3://rows/sums/*.jsonl)" in remote
    own = ("downloading s3://", "s3://", "tokenising ", "estimate ")
    assert [line for line in remote.splitlines() if not line.startswith(own)] == [
        line for line in local.splitlines() if not line.startswith(own)
    ]


def test_preferences_are_read_from_a_store(rows, folder: Path):
    config = (folder / "run.yaml").read_text().replace("mix: {sums: 1, words: 2}", "mix: {sums: 1}")
    config = config.replace(
        "sums: {path: sums.jsonl}\n  words: {path: words.jsonl}", "sums: {path: s3://rows/pairs.jsonl}"
    )
    (folder / "pairs.yaml").write_text(config)

    assert "tokenising sums (s3://rows/pairs.jsonl)" in plan_of(dpo.main, "pairs.yaml")


def test_a_missing_file_of_a_store_is_told_with_its_key(rows, folder: Path, edit_config: Callable, refusal: Callable):
    edit_config("{path: sums.jsonl}", "{path: s3://rows/none.jsonl}")

    assert refusal("run.yaml") == "datasets.sums.path: s3://rows/none.jsonl: the store has no such file"


def test_without_credentials_one_message_says_what_to_set(rows, store, folder: Path, edit_config: Callable):
    edit_config("{path: sums.jsonl}", "{path: s3://rows/sums}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"AWS_ENDPOINT_URL": store.environment["AWS_ENDPOINT_URL"], "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-c", "from posttrain.cli.sft import main; main()", "run.yaml"]
    before = contents(folder)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert done.returncode == 2, done.stderr
    assert the_one_error(done.stderr, done.stdout) == (
        "datasets.sums.path: s3://rows/sums: there are no credentials for the store (Unable to locate credentials); "
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    )
    assert contents(folder) == before


def test_files_are_cleaned_and_measured_in_a_store(rows, tmp_path: Path):
    output = tmp_path / "left.jsonl"
    arguments = ["decontaminate", "s3://rows/sums", str(output), "--against", "s3://rows/sums/1.jsonl"]
    cleaned = CliRunner().invoke(data.main, arguments)
    measured = CliRunner().invoke(data.main, ["stats", "s3://rows/sums"])

    assert "wrote 5 of 8 rows" in cleaned.stderr, cleaned.output
    assert len(output.read_text().splitlines()) == 5
    assert measured.exit_code == 0, measured.output


def dataserver(path: str) -> DataserverConfig:
    dataset = {"path": path, "graders": {"string_exact": 1}}
    stages = [{"name": "all", "until_step": 1, "mix": {"sums": 1}}]
    return DataserverConfig.model_validate({"data_root": "/none", "datasets": {"sums": dataset}, "stages": stages})


def test_a_dataserver_serves_rows_of_a_store(rows):
    told: list[str] = []
    loaded = load_datasets(dataserver("s3://rows/sums"), told.append)["sums"]

    assert [len(loaded), loaded.place(3)] == [8, "s3://rows/sums/2.jsonl:1"]
    assert told[:2] == ["s3://rows/sums: 2 files, in the order of their names", "reading s3://rows/sums"]


def test_evaluations_read_prompts_and_questions_of_a_store(rows, store, tmp_path: Path):
    store.put({"choice.jsonl": lines([{"prompt": "1 + 1?", "choices": ["2", "3"], "gold": "2"}])})
    prompts = FilePromptsConfig.model_validate({"path": "s3://rows/sums", "graders": {"string_exact": 1}})
    assert len(read_prompts("sums", prompts, None, {}).rows) == 8

    task = ChoiceTaskConfig.model_validate({"type": "choice", "path": "s3://rows/choice.jsonl"})
    task.load("choice", Setting(tmp_path, AnsweringConfig(), {}, allow_code_execution=False, skip_unusable=False))


def test_prompts_of_a_store_are_answered_into_a_local_file(rows, tmp_path: Path):
    files = match_files(Path("s3://rows/sums"), tmp_path / "answers.jsonl")
    inputs = read_inputs(list(files), ColumnsConfig(), "error")

    assert list(files.values()) == [tmp_path / "answers.jsonl"]
    assert [row.place for row in inputs.rows][2:4] == ["s3://rows/sums/1.jsonl:3", "s3://rows/sums/2.jsonl:1"]


def test_a_pipeline_sees_that_a_file_of_a_store_has_changed(rows, store):
    config = DecontaminateConfig(against=("s3://rows/sums",))
    before = file_digests(config)
    store.put({"sums/2.jsonl": lines(SUMS[4:])})
    listed.cache_clear()
    after = file_digests(config)

    assert list(before) == list(after) == ["against[0]", "against[1]"]
    assert [before[key] == after[key] for key in before] == [True, False]
    assert len(list(prompts_in("s3://rows/sums", "train", None))) == 7
