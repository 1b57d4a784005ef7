"""Rows of several tasks in one data set: each is checked and graded by the graders of its own task."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dataserver.dataserver_cases import make_config, write_rows
from dataserver.offline.offline_cases import read_lines
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.loading import load_datasets
from posttrain.dataserver.grading.golds import check_golds
from posttrain.dataserver.grading.questions import graders_in_use, own_plan, stage_plan
from posttrain.dataserver.journal.database import journal_to_read
from posttrain.dataserver.journal.reader import JournalReader, RowFilter
from posttrain.dataserver.offline.grade import grade_file
from posttrain.dataserver.offline.regrade import regrade
from posttrain.dataserver.plan import show_plan
from posttrain.dataserver.runtime import Loaded, config_id
from posttrain.dataserver.schemas import GradeItem, GradeRequest, GradeResponse, SampleRequest
from posttrain.dataserver.server import DataServer
from posttrain.errors import DataError
from posttrain.rl.plan import stage_table

ROWS = [
    {"task": "sum", "prompt": "1 + 1?", "answer": "2"},
    {"task": "word", "prompt": "Frozen dessert", "answer": "ice cream"},
    {"task": "sum", "prompt": "2 + 2?", "answer": "4"},
    {"task": "word", "prompt": "Capital of Norway", "answer": "Oslo"},
]
TASKS = {"sum": {"graders": {"number_exact": 1}}, "word": {"graders": {"crossword": 1}, "gates": ["short"]}}
GRADERS = {"short": {"type": "regex", "pattern": ".{1,20}"}, "lax": {"type": "contains"}}
STAGES = [
    {"name": "own", "until_step": 2, "mix": {"mixed": 1}},
    {"name": "lax words", "until_step": 4, "mix": {"mixed": 1},
     "grading": {"mixed": {"tasks": {"word": {"graders": {"lax": 1}}}}}},
    {"name": "lax", "until_step": 6, "mix": {"mixed": 1},
     "grading": {"mixed": {"graders": {"lax": 1}, "gates": [], "tasks": {"sum": {"graders": {"number_only": 1}}}}}},
]  # fmt: skip


def tasks_config(
    folder: Path, tasks: Mapping[str, Any] = TASKS, section: Mapping[str, Any] | None = None, **keys: Any
) -> DataserverConfig:
    mixed = {"graders": None, "tasks": tasks, **(section or {})}
    keys = {"graders": GRADERS, "stages": STAGES, "limits": {"workers": 1}, "prompts_per_iteration": 4, **keys}
    return make_config(folder, {"mixed": mixed}, **keys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "mixed.jsonl", ROWS)
    return tmp_path


def test_the_most_specific_section_that_names_graders_or_gates_decides(folder: Path):
    config = tasks_config(folder)

    def shown(task: str) -> list[tuple[dict[str, float], tuple[str, ...]]]:
        plans = [own_plan(config, "mixed", task), *(stage_plan(config, index, "mixed", task) for index in range(3))]
        return [(dict(plan.weights), plan.gates) for plan in plans]

    # Outside the stages, then in each of them.
    assert shown("sum") == [
        ({"number_exact": 1.0}, ()),
        ({"number_exact": 1.0}, ()),
        ({"number_exact": 1.0}, ()),
        ({"number_only": 1.0}, ()),
    ]
    assert shown("word") == [
        ({"crossword": 1.0}, ("short",)),
        ({"crossword": 1.0}, ("short",)),
        ({"lax": 1.0}, ("short",)),
        ({"lax": 1.0}, ()),
    ]


def test_a_task_without_graders_has_those_of_the_data_set(folder: Path):
    config = tasks_config(folder, {"sum": TASKS["sum"], "word": {}}, {"graders": {"crossword": 1}, "gates": ["short"]})
    assert dict(own_plan(config, "mixed", "word").weights) == {"crossword": 1.0}
    assert own_plan(config, "mixed", "sum").gates == ("short",)


def test_graders_that_judge_no_row_are_not_in_use(folder: Path):
    config = tasks_config(folder, TASKS, {"graders": {"json_valid": 1}}, stages=STAGES[:1])
    assert set(graders_in_use(config)) == {"number_exact", "crossword", "short"}


@pytest.mark.parametrize(
    ("tasks", "section", "stage", "place"),
    [
        ({"sum": {}}, {}, {}, ("datasets", "mixed", "file", "graders")),
        ({}, {}, {}, ("datasets", "mixed", "file", "graders")),
        ({"sum": {"graders": {}}}, {}, {}, ("datasets", "mixed", "file", "tasks", "sum", "graders")),
        ({"sum": {"graders": {"nope": 1}}}, {}, {}, ("datasets", "mixed", "tasks", "sum", "graders", "nope")),
        ({**TASKS, "sum": {"gates": ["nope"]}}, {"graders": {"contains": 1}}, {},
         ("datasets", "mixed", "tasks", "sum", "gates", 0)),
        (TASKS, {"gold": None}, {}, ("datasets", "mixed", "tasks", "sum", "graders", "number_exact")),
        (TASKS, {}, {"tasks": {"wrod": {}}}, ("stages", 0, "grading", "mixed", "tasks", "wrod")),
        (TASKS, {}, {"tasks": {"word": {"graders": {"nope": 1}}}},
         ("stages", 0, "grading", "mixed", "tasks", "word", "graders", "nope")),
    ],
)  # fmt: skip
def test_a_fault_is_told_at_its_key(tasks: Any, section: Any, stage: Any, place: tuple[str | int, ...], folder: Path):
    stages = [{**STAGES[0], "grading": {"mixed": stage}}]
    with pytest.raises(ValidationError) as error:
        tasks_config(folder, tasks, section, stages=stages)
    assert place in [problem["loc"] for problem in error.value.errors()]


@pytest.mark.parametrize("task", [None, "sums", 5, ["sum"], ""])
def test_a_row_of_another_task_is_a_bad_record(task: object, folder: Path):
    write_rows(folder / "mixed.jsonl", [*ROWS, {**ROWS[0], "task": task}])
    with pytest.raises(DataError, match=rf"{folder}/mixed.jsonl:5: 'task' must be one of .*\(sum, word\)"):
        load_datasets(tasks_config(folder), lambda line: None)
    told: list[str] = []
    config = tasks_config(folder, on_bad_record="skip")
    assert len(load_datasets(config, told.append)["mixed"]) == 4
    assert told[-1].endswith("rows by task: sum 2, word 2")


def test_the_column_may_have_another_name_or_be_within_an_object(folder: Path):
    write_rows(folder / "mixed.jsonl", [{**row, "task": "x", "about": {"kind": row["task"]}} for row in ROWS])
    told: list[str] = []
    load_datasets(tasks_config(folder, section={"task_column": "about.kind"}), told.append)
    assert told[-1].endswith("rows by task: sum 2, word 2")


def identity(config: DataserverConfig) -> str:
    return config_id(config, load_datasets(config, lambda line: None), graders_in_use(config))


def test_the_grading_of_a_task_is_part_of_the_identity(folder: Path):
    ids = [
        identity(tasks_config(folder, tasks, stages=STAGES[:1]))
        for tasks in (TASKS, {**TASKS, "sum": {"graders": {"number_match": 1}}}, {**TASKS, "more": TASKS["sum"]})
    ]
    assert len(set(ids)) == 3


def check(config: DataserverConfig) -> None:
    loaded = Loaded.read(config, lambda line: None)
    pool = loaded.new_pool()
    try:
        asyncio.run(check_golds(loaded, pool, lambda *progress: None))
    finally:
        pool.close()


def test_a_gold_is_checked_by_the_graders_of_its_own_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    # No word is a number, and 7 has no letters.
    check(tasks_config(folder, stages=STAGES[:1]))
    write_rows(folder / "mixed.jsonl", [*ROWS, {**ROWS[1], "answer": "7"}])
    with pytest.raises(DataError) as error:
        check(tasks_config(folder, stages=STAGES[:1]))
    (_, fault, _) = str(error.value).splitlines()
    assert f"{folder}/mixed.jsonl:5: crossword: " in fault


RIGHT = {str(row["prompt"]): str(row["answer"]) for row in ROWS}


async def graded(server: DataServer, iteration: int) -> list[tuple[str, GradeResponse]]:
    """For each prompt of an iteration, the results of its right answer and of that answer within a sentence."""
    sampled = await server.service.sample(SampleRequest(iteration=iteration, batch_size=4))
    found = []
    for sample in sampled.samples:
        prompt = sample.messages[-1].content
        texts = (RIGHT[prompt], f"it is {RIGHT[prompt]}")
        items = [GradeItem(item_id=str(n), sample_id=sample.sample_id, completion=text) for n, text in enumerate(texts)]
        request = GradeRequest(iteration=iteration, request_id=f"{iteration} {sample.sample_id}", items=items)
        found.append((prompt, await server.service.grade(request)))
    return found


def test_the_server_grades_and_stores_each_row_by_its_task(folder: Path):
    config = tasks_config(folder)

    async def use() -> None:
        server = DataServer(Loaded.read(config, print))
        try:
            for iteration, sum_, word in ((0, "number_exact", "crossword"), (2, "number_exact", "lax")):
                for prompt, response in await graded(server, iteration):
                    is_word = "?" not in prompt
                    names = [set(result.components) for result in response.results]
                    assert names == [{word, "short"} if is_word else {sum_}] * 2
                    # Only crossword wants nothing but the answer.
                    rewards = [result.reward for result in response.results]
                    assert rewards == ([1.0, 0.0] if is_word and word == "crossword" else [1.0, 1.0])
        finally:
            await server.close()

    asyncio.run(use())
    with journal_to_read(config.journal) as engine:
        stored = [(row.prompt, row.task) for row in JournalReader(engine).rows(RowFilter())]
    wanted = [(str(row["prompt"]), row["task"]) for row in ROWS]
    assert sorted(stored) == sorted(4 * wanted)  # two iterations, two completions of each


def write(folder: Path, name: str, tasks: Mapping[str, Any]) -> DataserverConfig:
    section = {"path": "mixed.jsonl", "tasks": tasks}
    config = {"datasets": {"mixed": section}, "graders": GRADERS, "stages": STAGES[:1], "limits": {"workers": 1}}
    (folder / name).write_text(yaml.safe_dump(config))
    return load_config(folder / name, DataserverConfig)


def test_files_are_graded_and_graded_again_by_task(folder: Path, capsys: pytest.CaptureFixture[str]):
    write_rows(folder / "c.jsonl", [{"prompt": prompt, "completion": f"it is {RIGHT[prompt]}"} for prompt in RIGHT])
    first, lax = write(folder, "a.yaml", TASKS), write(folder, "b.yaml", {**TASKS, "word": {"graders": {"lax": 1}}})
    grade_file(first, folder / "c.jsonl", None, dry_run=True)
    shown = capsys.readouterr().err
    assert "mixed: sum" in shown and "mixed: word" in shown
    grade_file(first, folder / "c.jsonl", folder / "graded.jsonl")
    assert [line["reward"] for line in read_lines(folder / "graded.jsonl")] == [1.0, 0.0, 1.0, 0.0]
    regrade(lax, folder / "graded.jsonl", folder / "again.jsonl", RowFilter())
    assert [line["reward"] for line in read_lines(folder / "again.jsonl")] == [1.0, 1.0, 1.0, 1.0]
    assert "2 of 4 completions changed" in capsys.readouterr().err


def test_the_description_and_the_plan_name_every_task(folder: Path, capsys: pytest.CaptureFixture[str]):
    config = tasks_config(folder)
    stage = Loaded.read(config, lambda line: None).meta.stages[1]
    assert {name: task.graders for name, task in stage.tasks["mixed"].items()} == {
        "sum": {"number_exact": 1.0},
        "word": {"lax": 1.0},
    }
    assert stage.rewards("mixed") == [("mixed: sum", "1 number_exact"), ("mixed: word", "(1 lax) × short")]
    table = stage_table(Loaded.read(config, lambda line: None).meta, 6)
    named, rewards = (list(column.cells) for column in (table.columns[2], table.columns[4]))
    assert list(zip(named, rewards, strict=True))[2:4] == stage.rewards("mixed")
    show_plan(config)
    rows = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    assert "lax words 2 to 3 mixed: sum 100.0% 8 1 number_exact" in rows
    assert "mixed: word (1 lax) × short" in rows
