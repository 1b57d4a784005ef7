"""What a supervised fine-tuning run warns about, in runs where it really happens."""

import json
import math
import shutil
from typing import Any

import pytest
import torch

from in_process import sft
from posttrain.config.load import load_config
from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.data.curriculum.step_plan import StepPlanner
from posttrain.errors import RunError
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import EndTokenUnlearnt, train
from running import metrics

QUICK = {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2, "schedule": "constant"}


def one_stage(steps: int) -> list[dict[str, Any]]:
    return [{"name": "one", "until_step": steps, "mix": {"a": 1}}]


@pytest.fixture
def write_rows(write_config, tmp_path, write_jsonl):
    """Write a config of one stage over the given rows, in float32; keywords replace whole sections."""

    def write(rows: list[dict[str, Any]], steps: int, **sections: Any) -> SFTConfig:
        given = {"datasets": {"a": {"path": "rows.jsonl"}}, "stages": one_stage(steps), "training": QUICK, **sections}
        config = write_config(**given)
        write_jsonl(tmp_path / "rows.jsonl", rows)
        return load_config(config, SFTConfig, ["model.dtype=float32"])

    return write


def warnings(run) -> dict[str, list[int]]:
    """The steps at which each watchdog warned."""
    found: dict[str, list[int]] = {}
    for row in metrics(run):
        for name in row.get("warnings", []):
            found.setdefault(name, []).append(row["step"])
    return found


def test_an_ordinary_run_warns_of_nothing(write_config, tmp_path, capsys):
    train(load_config(write_config(), SFTConfig), "run")
    rows = metrics(tmp_path / "runs" / "run")
    assert len(rows) == 8 and all(row["end_token_loss"] > 0 for row in rows)
    assert warnings(tmp_path / "runs" / "run") == {}
    assert "warning" not in capsys.readouterr().err


def test_a_loss_that_is_not_finite_names_its_rows_and_the_last_checkpoint(write_config, tmp_path):
    config = load_config(write_config(training=QUICK, run={"save_every": 2, "keep_checkpoints": 9}), SFTConfig)
    training = sft(config, tmp_path / "built")
    data = training.data
    calls: list[int] = []

    def spoil(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        # A step has two micro-batches: the second one of step 4 overflows.
        return output * math.inf if len(calls) == 8 else output

    training.model.get_input_embeddings().register_forward_hook(spoil)
    with pytest.raises(RunError) as stopped:
        training.train()
    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    plan = StepPlanner(data.curriculum, sizes, MicroBatchSize(2)).plan(3)
    places = [tmp_path / f"a.jsonl:{data.datasets['a'].lines[plan.draws[slot].row]}" for slot in plan.order]
    message = str(stopped.value)
    assert "loss is nan at step 4, so training stopped" in message and "Lower training.learning_rate" in message
    assert f"it comes from {places[2]}, {places[3]}: look at them" in message
    assert str(places[0]) not in message
    assert f"the last checkpoint is {tmp_path / 'built' / 'checkpoint-2'}: --resume continues from it" in message
    assert sorted(path.name for path in (tmp_path / "built").glob("checkpoint-*")) == ["checkpoint-2"]
    assert [row["step"] for row in metrics(tmp_path / "built")] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.ranks
def test_all_processes_end_where_a_loss_is_not_finite(write_config, toolkit, tmp_path):
    config = write_config(training={**QUICK, "learning_rate": 1e30, "micro_batch_size": 1})
    finished = toolkit("toolkit-sft", config, processes=2, expect=1)
    assert "at step" in finished.stderr and "every micro-batch is affected" in finished.stderr
    assert "no checkpoint was written" in finished.stderr
    assert not list((tmp_path / "runs" / "run").glob("checkpoint-*"))


def test_an_adapter_of_zeros_has_no_gradient(write_config, tmp_path, capsys):
    # Each factor's gradient is multiplied by the other factor, so neither can move.
    training = sft(load_config(write_config(), SFTConfig), tmp_path / "built")
    with torch.no_grad():
        for name, parameter in training.model.named_parameters():
            if "lora_A" in name:
                parameter.zero_()
    training.train()
    assert warnings(tmp_path / "built") == {"zero_gradient": list(range(1, 9))}
    said = capsys.readouterr().err
    assert said.count("warning at step") == 1
    assert "warning at step 1: the gradient is 0 with a loss of" in said and "lora.target_modules" in said
    assert "warnings by number of steps: zero_gradient 8;" in said


def test_rows_that_are_known_by_heart_have_nothing_to_teach(write_rows, tmp_path, capsys):
    config = write_rows([{"prompt": "Say", "completion": "a"}], 60, lora=None)
    train(config, "run")
    steps = warnings(tmp_path / "runs" / "run")["nothing_to_learn"]
    assert steps[0] > 10 and steps == list(range(steps[0], 61))
    losses = [row["loss"] for row in metrics(tmp_path / "runs" / "run")]
    assert [step for step, loss in enumerate(losses, start=1) if loss <= 5e-5] == steps
    said = capsys.readouterr().err
    assert said.count("warning at step") == 1 and "the loss is 0" in said and "stages.until_step" in said


def test_a_row_unlike_all_others_is_a_spike(write_rows, tmp_path, capsys):
    rows = [{"prompt": "Say", "completion": "a"}] * 31 + [{"prompt": "Say", "completion": "zebra quux \u00ff" * 9}]
    config = write_rows(rows, 32, lora=None, training={**QUICK, "rows_per_step": 1, "micro_batch_size": 1, "seed": 3})
    train(config, "run")
    found = metrics(tmp_path / "runs" / "run")
    longest = max(found, key=lambda row: row["tokens"])["step"]
    assert longest > 10  # where the curriculum's seed puts it
    assert warnings(tmp_path / "runs" / "run")["loss_spike"][0] == longest
    said = capsys.readouterr().err
    assert f"warning at step {longest}: the loss is" in said and "training.max_grad_norm" in said


def test_answers_that_have_lost_their_end_are_told_after_ten_steps(write_rows, tmp_path, capsys):
    rows = [{"prompt": "Count", "completion": "one two three " * 9}] * 8
    chat = {"max_length": 32, "truncation": "right", "min_end_tokens_kept": 0}
    train(write_rows(rows, 12, chat=chat), "run")
    assert warnings(tmp_path / "runs" / "run") == {"end_token_unlearnt": [10, 11, 12]}
    said = capsys.readouterr().err
    assert "no answer in 10 steps includes its end token" in said and "chat.truncation: drop" in said


def test_an_end_token_that_stays_unlikely_is_told_after_fifty_steps(write_config, tmp_path, capsys):
    slow = {"training": {**QUICK, "learning_rate": 1e-9}, "lora": {"r": 4}, "datasets": {"a": {"path": "a.jsonl"}}}
    config = write_config(stages=one_stage(52), **slow)
    train(load_config(config, SFTConfig), "run")
    assert warnings(tmp_path / "runs" / "run") == {"end_token_unlearnt": [50, 51, 52]}
    # A random model gives each of its 384 tokens about the same probability.
    assert all(math.log(150) < row["end_token_loss"] < math.log(800) for row in metrics(tmp_path / "runs" / "run"))
    said = capsys.readouterr().err
    assert "the model gives its end token a probability of 0." in said and "lora.modules_to_save" in said


def test_the_loss_of_the_end_token_is_the_mean_over_the_answers_ends(write_config, tmp_path):
    config = load_config(write_config(lora={"r": 4}), SFTConfig, ["model.dtype=float32"])
    training = sft(config, tmp_path / "built")
    data = training.data
    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    plan = StepPlanner(data.curriculum, sizes, MicroBatchSize(2)).plan(0)
    expected = []
    for draw in plan.draws:
        ids, trained = (torch.tensor(part) for part in data.datasets[draw.dataset].row(draw.row))
        (end,) = torch.where(trained & (ids == training.loaded.tokenizer.eos_token_id))[0]
        with torch.no_grad():
            log_p = training.model(input_ids=ids[None, :end].long()).logits[0, -1].log_softmax(-1)
        expected.append(-float(log_p[training.loaded.tokenizer.eos_token_id]))
    training.train()
    assert metrics(tmp_path / "built")[0]["end_token_loss"] == pytest.approx(sum(expected) / 4, abs=1e-4)


@pytest.mark.parametrize(("save_every", "told"), [(4, 1), (11, 0)])
def test_a_resumed_run_warns_as_the_run_left_alone(save_every, told, write_rows, tmp_path, capsys):
    # The warning at step 10 needs the steps before it, and once printed it is not repeated at step 12.
    rows = [{"prompt": "Count", "completion": "one two three " * 9}] * 8
    chat = {"max_length": 32, "truncation": "right", "min_end_tokens_kept": 0}
    config = write_rows(rows, 12, chat=chat, run={"save_every": save_every, "keep_checkpoints": 9})
    train(config, "run")
    run = tmp_path / "runs" / "run"
    whole = metrics(run)
    capsys.readouterr()
    # As a kill in the last step would have left it.
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoint-12")
    train(config, "run", resume=True)
    assert metrics(run) == whole
    said = capsys.readouterr().err
    assert said.count("warning at step") == told
    assert "warnings by number of steps: end_token_unlearnt 3;" in said


def end_losses(*values: float | None) -> list[dict[str, Any]]:
    return [{"step": step, "end_token_loss": value} for step, value in enumerate(values, start=1)]


@pytest.mark.parametrize(("loss", "warns"), [(2.3, False), (2.4, True)])
def test_an_end_token_is_unlikely_below_a_probability_of_a_tenth(loss: float, warns: bool):
    # ln 10 is 2.303; the median covers only the last 20 steps, however bad the earlier ones were.
    watchdog = EndTokenUnlearnt()
    said = [watchdog.look(row) for row in end_losses(*[9.0] * 40, *[loss] * 20)]
    assert said[:49] == [None] * 49 and said[49] is not None
    assert (said[-1] is not None) is warns


def test_one_answer_with_an_end_is_enough_to_say_that_ends_are_trained():
    watchdog = EndTokenUnlearnt()
    said = [watchdog.look(row) for row in end_losses(*[None] * 8, 5.0, *[None] * 30)]
    assert said == [None] * 39


def test_warnings_are_a_list_of_names_in_the_steps_that_have_any(write_rows, tmp_path):
    rows = [{"prompt": "Count", "completion": "one two three " * 9}] * 8
    chat = {"max_length": 32, "truncation": "right", "min_end_tokens_kept": 0}
    train(write_rows(rows, 11, chat=chat), "run")
    lines = (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert ["warnings" in row for row in found] == [False] * 9 + [True] * 2
    assert found[-1]["warnings"] == ["end_token_unlearnt"]
