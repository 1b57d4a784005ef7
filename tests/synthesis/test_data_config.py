"""Configs of `toolkit-data run` that are refused, before anything is asked."""

from collections.abc import Callable
from pathlib import Path

import pytest
from data_cases import DataCase


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("keep=[]", "nothing would be written"),
        ("keep=[{type: sftt, path: a.jsonl}]", "did you mean sft?"),
        ("keep=[{path: a.jsonl}]", "keep.0.type"),
        ("keep=[{type: sft, path: ../a.jsonl}]", "not the name of a .jsonl file"),
        ("keep=[{type: sft, path: .jsonl}]", "not the name of a .jsonl file"),
        ("keep=[{type: sft, path: a.json}]", "not the name of a .jsonl file"),
        ("keep=[{type: sft, path: a.jsonl}, {type: pairs, path: a.jsonl}]", "a.jsonl is written twice"),
        ("keep=[{type: sft, path: a.jsonl}, {type: pairs, path: a.control.jsonl}]", "written twice"),
        ("keep=[{type: sft, path: a.jsonl, min_gap: 1}]", "unknown key"),
        ("keep=[{type: pairs, path: a.jsonl, min_gap: 0}]", "min_gap"),
        ("keep=[{type: pairs, path: a.jsonl, max_length_ratio: 0.5}]", "max_length_ratio"),
        ("sample.temperature=0", "the same answer 4 times"),
        ("sample.n=0", "sample.n"),
        ("prompts.graders={says_b: 1}", "there is no grader 'says_b'"),
        ("prompts.path=nothing.jsonl", "nothing.jsonl"),
        ("prompts={config: nothing.yaml}", "put it there"),
        ("prompts.limit=0", "prompts.limit"),
        ("prompts=null", "prompts"),
        ("prompts=rows.jsonl", "prompts"),
        ("model.config=nothing.yaml", "nothing.yaml"),
        ("model.weights=merged", "model.yaml"),
        ("model={url: 'http://example.org/v1', model: x, token_env: KEY}", "without TLS"),
        ("model={url: 'http://127.0.0.1:9/v1', model: x, token_env: NOT_THERE}", "NOT_THERE"),
        ("dedup={exact: false}", "exact: false"),
        ("dedup={near: 0}", "dedup.near"),
        ("dedup={by: text}", "should be 'prompt' or 'row'"),
        ("decontaminate={against: []}", "against"),
        ("decontaminate={against: [nothing.jsonl]}", "nothing.jsonl"),
        ("decontaminate={against: [questions.jsonl]}", "all 12 are contaminated"),
        ("decontaminate={against: [questions.jsonl], column: text}", "column 'text'"),
        ("decontaminate={against: [questions.jsonl], share: 0}", "share"),
        ("sede=1", "did you mean seed?"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "run"])
def test_wrong_input_is_refused_and_nothing_is_written(
    case: DataCase, data: Callable, override: str, reason: str, dry_run: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(case.folder)
    before = sorted(case.folder.rglob("*"))
    message = data("run", case.config, "--set", override, *["--dry-run"] * dry_run, expect=2).stderr
    assert reason in message
    assert sorted(path for path in case.folder.rglob("*") if not path.name.startswith(".")) == before


def test_a_prompt_that_is_too_long_is_refused_or_counted(case: DataCase, data: Callable):
    path = case.folder / "questions.jsonl"
    path.write_text('{"prompt": "' + "word " * 900 + '"}\n{"prompt": "Say it."}\n')
    assert "questions.jsonl:1: the prompt has" in data("run", case.config, expect=2).stderr
    keep = "keep=[{type: sft, path: good.jsonl, min_reward: 0}]"
    data("run", case.config, "--set", "on_bad_record=skip", "--set", keep)
    prompts = case.ledger()["prompts"]
    assert (prompts["read"], prompts["unusable"], prompts["asked"]) == (2, 1, 1)


def test_the_schema_is_printed(data: Callable, tmp_path: Path):
    assert '"DataConfig"' in data("run", "--schema").stdout
