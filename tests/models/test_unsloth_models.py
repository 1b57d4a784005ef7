"""What unsloth does without a CUDA device, and that it refuses what the hf backend refuses."""

from pathlib import Path
from typing import Any

import pytest

from unsloth_facts import facts


@pytest.fixture(scope="module")
def both(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The facts of the hf and unsloth backends."""
    found = {}
    for backend in ("hf", "unsloth"):
        folder = tmp_path_factory.mktemp(backend)
        # Set through the environment, as a user may, to show which backend reads it.
        found[backend] = facts(backend, tiny_model, folder, POSTTRAIN_TOOLKIT_CACHE=str(folder / "cache"))
        found[backend]["folder"] = folder
    return found


def test_on_a_cpu_the_layers_are_those_of_transformers(both: dict[str, Any]) -> None:
    hf, unsloth = (both[backend]["forwards"] for backend in ("hf", "unsloth"))
    # unsloth can compute a chunked loss itself, but the loop never uses it: it passes no labels.
    assert unsloth.pop("LlamaForCausalLM") == "unsloth_zoo/cpu/ops.py"
    assert unsloth == {name: file for name, file in hf.items() if name != "LlamaForCausalLM"}


@pytest.mark.parametrize("wrong", ["weights", "attention"])
def test_what_hf_refuses_is_refused_and_not_passed_over(both: dict[str, Any], wrong: str) -> None:
    hf, unsloth = (both[backend]["refusals"][wrong].replace(str(both[backend]["folder"]), "") for backend in both)
    assert hf
    assert unsloth == hf


@pytest.mark.parametrize("kind", ["4bit", "8bit"])
def test_a_quantised_base_that_unsloth_would_not_quantise_is_refused(both: dict[str, Any], kind: str) -> None:
    assert both["hf"]["refusals"][kind] == ""
    assert both["unsloth"]["refusals"][kind] == (
        f"model.quantization: {kind} by unsloth needs a CUDA device; set it to none, or backend: hf"
    )


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
    assert {file.name for file in folder.iterdir()} == {"cache", "lacking"}
