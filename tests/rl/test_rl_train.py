"""A complete run: its output files agree with the dataserver's journal, and its model can be used."""

import json
from hashlib import blake2b
from pathlib import Path
from statistics import fmean

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from typer.testing import CliRunner

from posttrain.conversation.chatml import render, text
from posttrain.conversation.messages import parse_conversation
from posttrain.data.curriculum.order_hash import OrderHash
from rl.rl_runs import STEPS, WriteRun, folder_of, journal, lines, train_here, training_rows
from running import metrics

NUMBERS = {
    "loss",
    "grad_norm",
    "learning_rate",
    "reward",
    "reward_std",
    "zero_variance_share",
    "completion_tokens",
    "longest_completion",
    "truncated_share",
    "entropy",
    "clipped_share",
    "abstained",
    "failed",
    "too_long_prompts",
    "graders/says_a",
    "graders/says_e",
    "graders/says_digit",
}


def test_each_step_has_a_line_with_all_its_numbers(left_alone: Path) -> None:
    rows = training_rows(lines(folder_of(left_alone) / "metrics.jsonl"))

    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["stage"] for row in rows] == ["one"] * 4 + ["two"] * 4
    for row in rows:
        assert row.keys() >= NUMBERS
        assert all(isinstance(row[name], float) for name in NUMBERS)
        assert row["entropy"] > 1  # nats; a random model of 384 tokens is far from sure
        assert 1 <= row["completion_tokens"] <= row["longest_completion"] <= 8
        assert (row["abstained"], row["failed"], row["too_long_prompts"]) == (0, 0, 0)
    # The first stage draws from one data set, the second from both.
    assert all("rewards/a" in row and "rewards/b" not in row for row in rows[:4])
    assert {"rewards/a", "rewards/b"} <= rows[4].keys() | rows[5].keys()


def test_an_adapter_and_its_checkpoints_have_the_template_of_training(left_alone: Path) -> None:
    run = folder_of(left_alone)
    messages = [{"role": "user", "content": "Say 7 apples."}, {"role": "assistant", "content": "7"}]
    expected = text(render(parse_conversation(messages)))
    for folder in (run, run / f"checkpoint-{STEPS}"):
        assert AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False) == expected


def test_the_seconds_of_a_step_add_up(left_alone: Path) -> None:
    for row in training_rows(lines(folder_of(left_alone) / "metrics.jsonl")):
        seconds = row["seconds"]
        assert list(seconds) == ["generate", "grade", "sync", "wait", "engine_idle", "learn", "all"]
        assert min(seconds["generate"], seconds["grade"], seconds["learn"]) > 0
        assert sum(seconds[name] for name in ("sync", "wait", "learn")) == pytest.approx(seconds["all"], abs=1e-3)
        assert seconds["generate"] + seconds["grade"] <= seconds["wait"] + 1e-3  # which comes first, without staleness


def test_rewards_and_scores_are_means_of_what_the_dataserver_answered(left_alone: Path) -> None:
    graded = journal(left_alone)
    for row in training_rows(metrics(folder_of(left_alone))):
        rewards = [
            reward for split, iteration, *_, reward in graded if (split, iteration) == ("train", row["step"] - 1)
        ]
        assert len(rewards) == 8
        assert row["reward"] == pytest.approx(fmean(rewards), abs=1e-6)
        # The graders' weights are 4, 2 and 1.
        parts = 4 * row["graders/says_a"] + 2 * row["graders/says_e"] + row["graders/says_digit"]
        assert row["reward"] == pytest.approx(parts / 7, abs=1e-6)


def test_the_order_hash_can_be_computed_from_the_prompts_alone(left_alone: Path) -> None:
    graded, state = journal(left_alone), OrderHash().state()
    for row in training_rows(metrics(folder_of(left_alone))):
        asked = {slot: sample for split, i, slot, _, sample, *_ in graded if (split, i) == ("train", row["step"] - 1)}
        assert sorted(asked) == [0, 1]
        text = "".join(f"{asked[slot]}\n" for slot in sorted(asked))
        state = blake2b(bytes.fromhex(state) + text.encode(), digest_size=8).hexdigest()
        assert row["order_hash"] == state


def test_one_group_of_each_step_is_kept_to_read(left_alone: Path) -> None:
    kept = lines(folder_of(left_alone) / "completions.jsonl")
    graded = journal(left_alone)

    assert [line["step"] for line in kept] == [step for step in range(1, STEPS + 1) for _ in range(4)]
    for line in kept:
        row = (line["sample_id"], line["completion"], line["reward"])
        assert row in [row[4:] for row in graded if row[:3] == ("train", line["step"] - 1, 0)]
        assert line["prompt"].startswith("Say ")
        assert line["scores"].keys() == {"says_a", "says_e", "says_digit"}
        assert (line["status"], line["reason"]) == ("ok", "")


def test_each_evaluation_is_kept_whole_and_asks_the_same_held_out_rows(left_alone: Path) -> None:
    run = folder_of(left_alone)
    evaluated = [row for row in metrics(run) if "eval_reward" in row]
    trained = {row[4] for row in journal(left_alone) if row[0] == "train"}

    assert [row["step"] for row in evaluated] == [0, 2, 4, 6, 8]
    asked = []
    for row in evaluated:
        answers = lines(run / "evaluations" / f"step-{row['step']:06d}.jsonl")
        assert row["eval_reward"] == pytest.approx(fmean(answer["reward"] for answer in answers))
        assert row["eval_graders/says_e"] == pytest.approx(fmean(answer["scores"]["says_e"] for answer in answers))
        assert row["eval_tokens"] == pytest.approx(fmean(answer["tokens"] for answer in answers))
        assert row["eval_truncated"] == pytest.approx(fmean(answer["truncated"] for answer in answers))
        assert row["eval_ungraded"] == 0
        asked.append([answer["sample_id"] for answer in answers])
    assert asked[0] == [sample for sample in dict.fromkeys(asked[0]) for _ in range(2)]
    assert len(set(asked[0])) == 6
    assert asked == [asked[0]] * 5
    assert not trained & set(asked[0])


def test_the_result_tells_what_changed(left_alone: Path) -> None:
    run = folder_of(left_alone)
    result = json.loads((run / "result.json").read_text())
    rows = metrics(run)
    evaluated = [row["eval_reward"] for row in rows if "eval_reward" in row]

    assert (result["steps"], result["max_steps"], result["exported"]) == (8, 8, "checkpoint-8")
    assert result["completions"] == 64
    # Each prompt has at least 8 tokens and each completion at least one.
    assert result["tokens"] > 64 * 9
    assert result["reward"] == training_rows(rows)[-1]["reward"]
    change = result["held_out"]["reward"]
    assert (change["before"], change["after"]) == pytest.approx((evaluated[0], evaluated[-1]))
    assert change["mean"] == pytest.approx(evaluated[-1] - evaluated[0])
    assert change["prompts"] == 6
    assert result["held_out"].keys() == {"reward", "says_a", "says_e", "says_digit"}


def test_a_run_keeps_its_name_at_the_dataserver_and_pictures(left_alone: Path) -> None:
    run = folder_of(left_alone)
    record = json.loads((run / "dataserver.json").read_text())

    assert record.keys() == {"run_id", "config_id"}
    assert len(record["run_id"]) == 16
    assert record["config_id"] == json.loads((run / "manifest.json").read_text())["identity"]["dataserver"]
    names = {"reward.png", "length.png", "entropy.png", "waits.png", "zero_variance.png"}
    assert {file.name for file in run.joinpath("plots").iterdir()} == names
    assert all(run.joinpath("plots", name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_the_adapter_at_the_root_is_that_of_the_last_step_and_has_learnt(left_alone: Path) -> None:
    run = folder_of(left_alone)
    last, earlier = (load_file(run / f"checkpoint-{step}" / "adapter_model.safetensors") for step in (8, 2))

    assert (run / "adapter_model.safetensors").read_bytes() == (
        run / "checkpoint-8" / "adapter_model.safetensors"
    ).read_bytes()
    learnt = [name for name in last if "lora_B" in name]
    assert learnt
    # A new adapter has B = 0.
    assert all(last[name].abs().max() > 0 for name in learnt)
    assert any(not torch.equal(last[name], earlier[name]) for name in learnt)


def test_the_model_can_be_merged_and_asked(left_alone: Path, tmp_path: Path) -> None:
    from posttrain.cli.merge import main as merge
    from posttrain.cli.predict import main as predict

    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('{"prompt": "Say 3 apples."}\n{"prompt": "Say 4 apples."}\n')
    merged = CliRunner().invoke(merge, [str(left_alone), "--output", str(tmp_path / "merged")])
    assert merged.exit_code == 0, merged.output
    asked = CliRunner().invoke(
        predict,
        [str(left_alone), str(prompts), str(answers), "--weights=adapter", "--set=generation.max_new_tokens=4"],
    )
    assert asked.exit_code == 0, asked.output

    assert (tmp_path / "merged" / "model.safetensors").is_file()
    assert len(lines(answers)) == 2


def test_the_same_seed_gives_the_same_run_and_another_seed_another(left_alone: Path, a_run: WriteRun) -> None:
    again, other = a_run(), a_run("other")
    short = ("training.max_steps=2", "evaluation.at_start=false")
    train_here(again)
    train_here(other, (*short, "training.seed=1"))

    run, same, different = folder_of(left_alone), folder_of(again), folder_of(other)
    assert metrics(same) == metrics(run)
    assert lines(same / "completions.jsonl") == lines(run / "completions.jsonl")
    # The prompts depend on the dataserver's seed, not on the trainer's.
    first, another = training_rows(metrics(run))[0], training_rows(metrics(different))[0]
    assert another["order_hash"] == first["order_hash"]
    assert lines(different / "completions.jsonl")[0]["completion"] != lines(run / "completions.jsonl")[0]["completion"]


# Turns begin with token 0 and end with token 1; the tokenizer's end token is 2.
OTHER_TURNS = (
    "{% for m in messages %}<|endoftext|>{{ m.role }}\n{{ m.content }}<|im_start|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant\n{% endif %}"
)


def test_a_control_token_that_begins_a_turn_ends_a_completion_which_is_not_cut_and_is_graded_without_it(
    a_run: WriteRun,
) -> None:
    # A random model samples each of its 384 tokens with probability 1/384; 200 completions of up to 50 tokens.
    config = a_run(
        chat={"template": OTHER_TURNS},
        rollout={"max_new_tokens": 50},
        evaluation={"every": 2, "max_new_tokens": 50, "samples": 16},
        training={"max_steps": 2, "learning_rate": 1e-9},
    )
    train_here(config)
    folder = folder_of(config)
    said = [line for file in sorted((folder / "evaluations").iterdir()) for line in lines(file)]
    said += lines(folder / "completions.jsonl")

    assert not any("<|" in line["completion"] for line in said)
    assert {line["truncated"] for line in said if line["tokens"] < 50} == {False}
    # With three end tokens, 50 tokens contain one with probability 1 − (381/384)^50 = 32 %; with two, 23 %.
    assert 0.27 < fmean(not line["truncated"] for line in said) < 0.42
