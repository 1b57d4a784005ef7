"""Every argument of the trainer that changes a training is set, whoever changed its default."""

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments
from trl import SFTConfig

from posttrain.config.sections.datasets import ValidationConfig
from posttrain.config.sections.run import RunConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ConfigError
from posttrain.runs.directory import RunDirectory
from posttrain.train.arguments import accumulation_steps, schedule_arguments, trainer_arguments

FIELDS = {field.name: field for field in dataclasses.fields(TrainingArguments)}


@pytest.fixture
def arguments(tmp_path):
    def make(training=None, run=None, dtype=torch.float32, validation=None, first_step=0):
        return trainer_arguments(
            training or TrainingConfig(),
            run or RunConfig(),
            RunDirectory(tmp_path / "mine"),
            max_steps=50,
            compute_dtype=dtype,
            validation=validation,
            first_step=first_step,
        )

    return make


def default(field: dataclasses.Field) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def test_each_default_that_trl_changes_is_set(arguments):
    changed = {
        field.name
        for field in dataclasses.fields(SFTConfig)
        if field.name in FIELDS and default(field) != default(FIELDS[field.name])
    }
    assert {"learning_rate", "gradient_checkpointing", "logging_steps"} <= changed
    assert changed - arguments().keys() == set()


def test_each_default_that_unsloth_changes_is_set(arguments):
    # Read as text: importing unsloth would rewrite the classes that the other tests use.
    spec = importlib.util.find_spec("unsloth")
    assert spec is not None, "unsloth is not installed: its defaults cannot be compared"
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "models" / "rl.py").read_text(encoding="utf-8")
    tables = re.findall(r"^ +replacements = \{(.*?)\}$", source, flags=re.MULTILINE | re.DOTALL)
    names = set(re.findall(r'^ +"(\w+)":', "\n".join(tables), flags=re.MULTILINE))
    names |= set(re.findall(r'replacements\["(\w+)"\] =', source))
    changed = names & FIELDS.keys()
    assert {"seed", "optim", "learning_rate", "weight_decay", "warmup_steps"} <= changed
    assert changed - arguments().keys() == set()


def test_the_arguments_are_taken_by_transformers_as_they_are(arguments):
    given = arguments(TrainingConfig(max_grad_norm=0, optimizer="sgd"), dtype=torch.bfloat16)
    taken = TrainingArguments(**given)
    for name in given.keys() - {"lr_scheduler_type", "optim", "eval_strategy", "save_strategy", "report_to"}:
        expected = [] if given[name] == "none" else given[name]
        assert getattr(taken, name) == expected, name
    assert (str(taken.lr_scheduler_type.value), str(taken.optim.value)) == ("cosine", "sgd")
    assert taken.report_to == []


def test_a_step_is_made_of_micro_batches(arguments):
    given = arguments(TrainingConfig(rows_per_step=24, micro_batch_size=4, seed=7, gradient_checkpointing=True))
    assert given["per_device_train_batch_size"] == given["per_device_eval_batch_size"] == 4
    assert given["gradient_accumulation_steps"] == 6
    assert given["max_steps"] == 50
    assert given["seed"] == given["data_seed"] == 7
    assert given["gradient_checkpointing"] is True
    assert given["gradient_checkpointing_kwargs"] == {"use_reentrant": False}


def test_rows_reach_the_trainer_in_their_order_and_in_this_process(arguments):
    given = arguments()
    assert given["train_sampling_strategy"] == "sequential"
    assert given["dataloader_num_workers"] == 0
    assert given["dataloader_drop_last"] is False
    assert given["remove_unused_columns"] is False


def test_the_optimizer_is_the_one_of_the_config(arguments):
    training = TrainingConfig(
        learning_rate=3e-4, warmup_steps=5, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1, max_grad_norm=0.5
    )
    given = arguments(training)
    names = ("optim", "learning_rate", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon")
    assert [given[name] for name in names] == ["adamw_torch_fused", 3e-4, 5, 0.8, 0.95, 1e-6]
    assert (given["weight_decay"], given["max_grad_norm"]) == (0.1, 0.5)
    others = [arguments(TrainingConfig(optimizer=name))["optim"] for name in ("adamw_8bit", "sgd")]
    assert others == ["adamw_8bit", "sgd"]


@pytest.mark.parametrize(
    ("dtype", "flags"),
    [(torch.float32, (False, False)), (torch.bfloat16, (True, False)), (torch.float16, (False, True))],
    ids=str,
)
def test_mixed_precision_follows_the_models_dtype(arguments, dtype, flags):
    given = arguments(dtype=dtype)
    assert (given["bf16"], given["fp16"]) == flags


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"schedule": "constant"}, ("constant", {})),
        ({"schedule": "constant", "warmup_steps": 3}, ("constant_with_warmup", {})),
        ({"schedule": "linear", "warmup_steps": 3}, ("linear", {})),
        ({"schedule": "cosine"}, ("cosine", {})),
        ({"schedule": "cosine", "min_learning_rate_ratio": 0.1}, ("cosine_with_min_lr", {"min_lr_rate": 0.1})),
    ],
    ids=str,
)
def test_the_schedule_is_named_as_transformers_names_it(training, expected):
    assert schedule_arguments(TrainingConfig(**training)) == expected


def test_validation_is_measured_as_often_as_asked_and_at_the_start_of_a_new_run_only(arguments):
    assert arguments()["eval_strategy"] == "no"
    assert arguments()["eval_on_start"] is False
    validation = ValidationConfig(fraction=0.1, every=7)
    given = arguments(validation=validation)
    assert (given["eval_strategy"], given["eval_steps"], given["eval_on_start"]) == ("steps", 7, True)
    assert arguments(validation=validation, first_step=5)["eval_on_start"] is False
    late = ValidationConfig(fraction=0.1, at_start=False)
    assert arguments(validation=late)["eval_on_start"] is False


def test_checkpoints_go_to_the_private_folder_and_are_rotated_by_nobody_but_us(arguments, tmp_path):
    given = arguments(run=RunConfig(save_every=25, trackers=("tensorboard",)))
    assert given["output_dir"] == str(tmp_path / "mine" / ".trainer")
    assert given["run_name"] == "mine"
    assert (given["save_strategy"], given["save_steps"], given["save_total_limit"]) == ("steps", 25, None)
    assert given["load_best_model_at_end"] is False
    assert given["report_to"] == ["tensorboard"]
    assert given["push_to_hub"] is False


def test_one_process_accumulates_the_whole_step(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert accumulation_steps(TrainingConfig(rows_per_step=16, micro_batch_size=4)) == 4


def test_more_processes_share_the_same_step(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert accumulation_steps(TrainingConfig(rows_per_step=24, micro_batch_size=4)) == 2


def test_a_step_that_does_not_divide_over_the_processes_says_what_would(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"rows_per_step 16 is not .* 4 × 3 processes; choose a multiple of 12"):
        accumulation_steps(TrainingConfig(rows_per_step=16, micro_batch_size=4))
