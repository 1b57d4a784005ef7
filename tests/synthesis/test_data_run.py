"""`toolkit-data run`: what it asks, keeps, writes, asks again, and refuses."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from data_cases import KEEP, DataCase, killed_after, require_sums, write_jsonl_file
from words_server import WordsServer, words_server


def sample_ids(rows: list[dict]) -> Counter[str]:
    return Counter(row["sample_id"] for row in rows)


def test_kept_rows_are_those_of_the_grades(answered: DataCase, data: Callable):
    data("run", answered.config)
    (grades,) = answered.kept("grades").values()
    graded = {(line["sample_id"], line["sample"]): line for line in map(json.loads, grades.splitlines())}
    assert len(graded) == 12 * 4
    good, pairs = answered.rows("good.jsonl"), answered.rows("pairs.jsonl")
    assert good and pairs
    for row in good:
        line = graded[row["sample_id"], row["sample"]]
        assert row["completion"] == [{"role": "assistant", "content": line["completion"]}]
        assert row["prompt"] == [{"role": "user", "content": line["prompt"]}]
        assert row["reward"] == line["reward"] >= 0.6 and line["stop_reason"] != "length"
    for row in pairs:
        sides = {side: graded[row["sample_id"], row["samples"][side]] for side in ("chosen", "rejected")}
        assert {line["prompt"] for line in sides.values()} == {row["prompt"][0]["content"]}
        for side, line in sides.items():
            assert row[side] == [{"role": "assistant", "content": line["completion"]}]
            assert row["rewards"][side] == line["reward"]
        assert sides["chosen"]["reward"] - sides["rejected"]["reward"] > 0.3
        assert sides["chosen"]["stop_reason"] != "length"

    ledger = answered.ledger()
    require_sums(ledger)
    assert ledger["prompts"]["asked"] == 12 and ledger["answers"]["asked"] == 48
    assert ledger["files"]["good.jsonl"]["rows"]["kept"] == len(good)
    answers = [json.loads(line) for line in next(iter(answered.kept("answers").values())).splitlines()]
    assert ledger["tokens"]["answered"] == sum(line["tokens"] for line in answers)
    chosen = ledger["files"]["pairs.jsonl"]["lengths"]["chosen"]
    assert chosen["max"] == max(len(row["chosen"][0]["content"]) for row in pairs)


def test_the_controls_have_as_many_rows_of_each_prompt(answered: DataCase, data: Callable):
    data("run", answered.config)
    for name in ("good", "pairs"):
        assert sample_ids(answered.rows(f"{name}.control.jsonl")) == sample_ids(answered.rows(f"{name}.jsonl"))
    rewards = [row["reward"] for row in answered.rows("good.control.jsonl")]
    assert min(rewards) < 0.6
    data("run", answered.config, "--set", "control=false", "--set", f"output={answered.folder / 'alone'}")
    assert not list((answered.folder / "alone").glob("*.control.jsonl"))


def test_other_graders_or_another_choice_generate_nothing(answered: DataCase, data: Callable):
    data("run", answered.config)
    kept_answers = answered.kept("answers")
    before = answered.files()
    again = data("run", answered.config)
    assert "loading" not in again.stderr and answered.files() == before

    answered.change(keep=[{**KEEP[0], "min_reward": 0.3, "choose": "shortest"}])
    told = data("run", answered.config, expect=2).stderr
    assert "good.jsonl was written with another config" in told and "min_reward" in told
    assert answered.files() == before
    assert "loading" not in data("run", answered.config, "--overwrite").stderr
    answered.change(
        graders={"says_a": {"type": "regex", "pattern": "(?s).*"}, "says_e": {"type": "regex", "pattern": "x"}}
    )
    assert "loading" not in data("run", answered.config, "--overwrite").stderr
    # Only the first grader, with two thirds of the weight, finds them right.
    assert {round(row["reward"], 3) for row in answered.rows("good.jsonl")} == {0.667}
    assert answered.kept("answers") == kept_answers


@pytest.mark.long
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(case: DataCase, data: Callable, tmp_path: Path):
    case.change(sample={"n": 4, "max_new_tokens": 24, "batch_size": 1, "stop": ["e"]})
    limited = ("--set", "prompts.limit=5")
    assert "loading" in data("run", case.config, *limited).stderr
    whole = case.files()
    case.output.rename(tmp_path / "whole")
    killed_after(6, "*.partial", case, *limited)
    assert not list(case.output.glob("*.jsonl"))
    (partial,) = case.output.rglob("*.partial")
    kept = [json.loads(line) for line in partial.read_bytes().splitlines()[1:7]]
    data("run", case.config, *limited)
    assert case.files() == whole
    (answers,) = case.kept("answers").values()
    assert all(line in [json.loads(each) for each in answers.splitlines()] for line in kept)


def test_a_run_that_was_killed_while_it_wrote_its_rows_writes_them_again(answered: DataCase, data: Callable):
    data("run", answered.config)
    whole = answered.files()
    (answered.output / "ledger.json").unlink()
    (answered.output / "pairs.jsonl").unlink()
    data("run", answered.config)
    assert answered.files() == whole
    require_sums(answered.ledger())


def test_contaminated_and_repeated_prompts_are_not_asked(case: DataCase, served: WordsServer, data: Callable):
    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    rows = [{"prompt": text} for text in ("Say it.", "  say IT.", f"{long} apples", f"Now {long}", "What is new?")]
    write_jsonl_file(case.folder / "questions.jsonl", rows)
    held_out = [{"prompt": "what is NEW?", "completion": "x"}, {"prompt": long, "completion": "y"}]
    write_jsonl_file(case.folder / "held_out.jsonl", held_out)
    case.change(dedup={}, decontaminate={"against": ["held_out.jsonl"]})
    data("run", case.config, "--set", "keep=[{type: sft, path: good.jsonl, min_reward: 0}]")
    ledger = case.ledger()
    require_sums(ledger)
    assert {name: ledger["prompts"][name] for name in ("read", "contaminated", "duplicate", "asked")} == {
        "read": 5,
        "contaminated": 3,
        "duplicate": 1,
        "asked": 1,
    }
    places = {Path(each["place"]).name: Path(each["because_of"]).name for each in ledger["contaminated"]}
    assert places == {
        "questions.jsonl:3": "held_out.jsonl:2",
        "questions.jsonl:4": "held_out.jsonl:2",
        "questions.jsonl:5": "held_out.jsonl:1",
    }
    assert {messages[0]["content"].strip().lower() for messages in served.asked} == {"say it."}
    (duplicate,) = ledger["duplicates"]
    assert {Path(duplicate[key]).name for key in ("place", "because_of")} == {"questions.jsonl:1", "questions.jsonl:2"}


def test_rows_that_repeat_others_are_left_out_of_their_file_and_its_control(answered: DataCase, data: Callable):
    keep = [{"type": "sft", "path": "good.jsonl", "min_reward": 0, "per_prompt": 2}]
    answered.change(dedup={"near": 0.1, "by": "row"}, keep=keep)
    data("run", answered.config)
    ledger = answered.ledger()["files"]["good.jsonl"]
    require_sums(answered.ledger())
    # Prompts that say it twice or more have more than five words, which are in both of their rows.
    of_long = [row for row in answered.rows("good.jsonl") if row["prompt"][0]["content"].count("Say") > 1]
    assert of_long and set(sample_ids(of_long).values()) == {1}
    assert ledger["rows"]["duplicate"] >= len(of_long) - 2
    assert {Path(each["place"].split(" answer ")[0]).name for each in ledger["duplicates"]} <= {
        f"questions.jsonl:{number + 1}" for number in range(12)
    }
    assert sample_ids(answered.rows("good.control.jsonl")) == sample_ids(answered.rows("good.jsonl"))


def test_answers_without_a_grade_are_neither_chosen_nor_rejected(answered: DataCase, data: Callable):
    (answered.folder / "graders.py").write_text(
        "def score(item):\n    if len(item.completion) % 2:\n        raise ValueError('no')\n    return 1.0\n"
    )
    answered.change(
        prompts={"path": "questions.jsonl", "gold": None, "graders": {"mine": 1}},
        graders={"mine": {"type": "python", "path": "graders.py:score"}},
    )
    assert "no row was kept for pairs.jsonl" in data("run", answered.config, expect=1).stderr
    ledger = answered.ledger()
    require_sums(ledger)
    assert ledger["answers"]["ungraded"] > 0
    assert ledger["files"]["pairs.jsonl"]["prompts"]["all right"] == ledger["rewards"]["all right"] > 0
    assert all(len(row["completion"][0]["content"]) % 2 == 0 for row in answered.rows("good.jsonl"))


def test_rows_of_a_dataserver_are_asked_too(case: DataCase, served: WordsServer, data: Callable):
    rows = {
        "datasets": {
            "apples": {
                "path": "questions.jsonl",
                "gold": None,
                "system": "Say it.",
                "graders": {"says_a": 2, "says_e": 1},
                "validation_fraction": 0.25,
            }
        },
        "graders": yaml.safe_load(case.config.read_text())["graders"],
        "stages": [{"name": "one", "until_step": 5, "mix": {"apples": 1}}],
    }
    (case.folder / "served.yaml").write_text(yaml.safe_dump(rows))
    case.change(prompts={"config": "served.yaml", "limit": 8}, graders=None)
    data("run", case.config)
    assert case.ledger()["prompts"]["asked"] == 8
    assert {row["dataset"] for row in case.rows("good.jsonl")} == {"apples"}
    assert case.rows("good.jsonl")[0]["prompt"][0] == {"role": "system", "content": "Say it."}
    assert len(served.asked) == 8 * 4


def test_a_server_answers_and_is_not_asked_twice(case: DataCase, served: WordsServer, data: Callable):
    data("run", case.config)
    assert len(served.asked) == 12 * 4
    before = case.files()
    case.change(keep=[KEEP[0]])
    data("run", case.config, "--overwrite")
    assert len(served.asked) == 12 * 4
    assert case.files()["good.jsonl"] == before["good.jsonl"]
    ledger = case.ledger()
    require_sums(ledger)
    assert ledger["tokens"] == {"asked": None, "answered": None}
    assert {row["completion"][0]["content"].count("a") > 0 for row in case.rows("good.jsonl")} == {True}


def test_two_devices_sample_what_one_does(answered: DataCase, data: Callable):
    data("run", answered.config)
    whole = answered.files()
    answered.output.rename(answered.folder / "whole")
    assert "loading" in data("run", answered.config, "--set", "sample.devices=[cpu, cpu]").stderr
    assert answered.files() == whole


def test_two_servers_share_the_prompts(case: DataCase, served: WordsServer, data: Callable):
    data("run", case.config)
    (answers,) = case.kept("answers").values()
    with words_server() as (other, url):
        first = yaml.safe_load(case.config.read_text())["model"]["url"]
        case.change(model={"url": [first, url], "model": "words"}, output="shared")
        assert f"model: words at {first}, {url}\n" in data("run", case.config, "--dry-run").stderr
        data("run", case.config)
    assert min(len(served.asked) - 48, len(other.asked)) > 0
    assert len(served.asked) + len(other.asked) == 2 * 48
    (shared,) = (case.folder / "shared" / "kept" / "answers").iterdir()
    assert shared.read_bytes() == answers


def test_a_dry_run_says_what_would_be_asked_and_writes_nothing(case: DataCase, data: Callable):
    before = sorted(case.folder.rglob("*"))
    told = data("run", case.config, "--dry-run").stderr
    assert "12 to ask for 4 answers each" in told and "nothing was asked" in told
    assert sorted(case.folder.rglob("*")) == before


@pytest.mark.parametrize("command", ["sft", "dpo"])
def test_the_kept_rows_are_trained_as_they_are(answered: DataCase, data: Callable, command: str, tiny_model: Path):
    from typer.testing import CliRunner

    from posttrain.cli.dpo import main as dpo
    from posttrain.cli.sft import main as sft

    data("run", answered.config)
    name = {"sft": "good", "dpo": "pairs"}[command]
    config = {
        "model": {"name": str(tiny_model), "dtype": "float32"},
        "lora": {"r": 4},
        "chat": {"max_length": 256},
        "datasets": {kind: {"path": f"out/{kind}.jsonl"} for kind in (name, f"{name}.control")},
        "stages": [{"name": "one", "until_step": 2, "mix": {name: 1, f"{name}.control": 1}}],
        "training": {"rows_per_step": 2, "micro_batch_size": 2},
    }
    path = answered.folder / f"{command}.yaml"
    path.write_text(yaml.safe_dump(config))
    done = CliRunner().invoke({"sft": sft, "dpo": dpo}[command], [str(path)])
    assert done.exit_code == 0, done.output
    counted = json.loads((answered.folder / "runs" / command / "ledger.json").read_text())
    read = counted if isinstance(counted, list) else list(counted.values())
    assert [each["records"] for each in read[:2]] == [len(answered.rows(f"{name}.jsonl"))] * 2
    assert all(each["bad"] == 0 and not each["dropped"] for each in read[:2])
