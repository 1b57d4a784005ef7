"""What is left of unsloth where there is no CUDA device, and that it changes no setting behind the config's back."""

import re
from pathlib import Path
from typing import Any

import pytest

from unsloth_facts import facts

PATHS = ("output_dir", "logging_dir")


@pytest.fixture(scope="module")
def both(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The facts of the hf backend and of unsloth."""
    found = {}
    for backend in ("hf", "unsloth"):
        folder = tmp_path_factory.mktemp(backend)
        # Named from outside, as a user may, so that it is seen who reads it.
        found[backend] = facts(backend, tiny_model, folder, POSTTRAIN_TOOLKIT_CACHE=str(folder / "cache"))
        found[backend]["folder"] = folder
    return found


@pytest.mark.parametrize("trainer", ["sft", "dpo", "grpo"])
def test_every_argument_of_a_trainer_is_that_of_the_hf_backend(both: dict[str, Any], trainer: str) -> None:
    hf, unsloth = (both[backend]["arguments"][trainer] for backend in ("hf", "unsloth"))
    assert len(unsloth) > 100
    assert {key: value for key, value in unsloth.items() if key not in PATHS} == {
        key: value for key, value in hf.items() if key not in PATHS
    }


def test_on_a_cpu_the_trainers_are_those_of_trl_and_transformers(both: dict[str, Any]) -> None:
    hf, unsloth = both["hf"]["bases"], both["unsloth"]["bases"]
    assert unsloth["dpo"] == hf["dpo"]
    assert unsloth["grpo"] == hf["grpo"]
    # A subclass that takes arguments of older versions of TRL, and nothing else; it says that it stands in TRL.
    added = [base for base in unsloth["sft"] if base not in hf["sft"]]
    assert added == ["trl/trainer/sft_trainer.py:_make_cpu_sft_trainer.<locals>.SFTTrainer"]
    assert [base for base in unsloth["sft"] if base not in added] == hf["sft"]


@pytest.mark.parametrize("trainer", ["sft", "dpo", "grpo"])
def test_on_a_cpu_every_step_of_training_is_the_code_of_the_hf_backend(both: dict[str, Any], trainer: str) -> None:
    assert both["unsloth"]["methods"][trainer] == both["hf"]["methods"][trainer]


@pytest.mark.parametrize("trainer", ["sft", "dpo", "grpo"])
def test_on_a_cpu_the_layers_are_those_of_transformers(both: dict[str, Any], trainer: str) -> None:
    hf, unsloth = (both[backend]["forwards"][trainer] for backend in ("hf", "unsloth"))
    # It can compute the loss itself, in chunks, which our trainers never ask for: they give it no labels.
    assert unsloth.pop("LlamaForCausalLM") == "unsloth_zoo/cpu/ops.py"
    assert unsloth == {name: file for name, file in hf.items() if name != "LlamaForCausalLM"}


@pytest.mark.parametrize("wrong", ["4bit", "8bit", "weights", "attention"])
def test_what_hf_refuses_is_refused_and_not_passed_over(both: dict[str, Any], wrong: str) -> None:
    hf, unsloth = (both[backend]["refusals"][wrong].replace(str(both[backend]["folder"]), "") for backend in both)
    assert hf
    assert unsloth == hf
    if wrong.endswith("bit"):
        assert unsloth == f"model.quantization: {wrong} needs a CUDA device; set it to none"


def test_an_adapter_on_the_head_is_refused_as_unsloth_would_train_all_of_it(both: dict[str, Any]) -> None:
    assert both["hf"]["refusals"]["head"] == ""
    assert both["unsloth"]["refusals"]["head"] == (
        "lora.target_modules: unsloth puts no adapter on lm_head; name it in lora.modules_to_save, or set "
        "model.backend to hf"
    )


def test_activations_are_kept_unless_the_config_says_otherwise(both: dict[str, Any]) -> None:
    assert [both[backend]["recomputes"] for backend in ("hf", "unsloth")] == [False, False]


def test_generated_code_goes_to_the_cache(both: dict[str, Any]) -> None:
    folder = both["unsloth"]["folder"]
    assert both["unsloth"]["compile_location"] == str(folder / "cache" / "unsloth")
    assert {file.name for file in folder.iterdir()} == {"cache", "lacking", "sft", "dpo", "grpo"}


def test_an_8bit_optimizer_without_a_cuda_device_is_refused_whatever_the_backend(write_config, toolkit) -> None:
    for backend in ("hf", "unsloth"):
        options = (f"model.backend={backend}", "training.optimizer=adamw_8bit")
        said = toolkit(
            "toolkit-sft", write_config(), *(word for each in options for word in ("--set", each)), expect=2
        ).stderr
        assert re.search(r"training\.optimizer: adamw_8bit needs (bitsandbytes and )?a CUDA device", said)
