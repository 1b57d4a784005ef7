"""What cannot be merged is refused before anything is written, and a failure leaves nothing behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from merge_cases import Case, make_base, make_case, merge_case
from safetensors.torch import load_file, save_file

from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError, ModelError

Tensors = dict[str, torch.Tensor]
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return make_case(make_base(tmp_path / "base"), tmp_path / "adapter")


def edit_tensors(file: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def edit_json(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def require_refused(case: Case, tmp_path: Path, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        merge_case(case, tmp_path / "merged")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "merged"))]


def test_an_adapter_tensor_that_the_model_has_no_place_for_is_named(case: Case, tmp_path: Path):
    def add(tensors: Tensors) -> None:
        tensors["base_model.model.model.layers.7.mlp.up_proj.lora_A.weight"] = torch.zeros(4, 32)

    edit_tensors(case.adapter / "adapter_model.safetensors", add)
    require_refused(case, tmp_path, ModelError, r"no place for: .*layers\.7\.mlp\.up_proj\.lora_A\.weight")


def test_an_adapter_tensor_that_is_missing_is_named(case: Case, tmp_path: Path):
    edit_tensors(case.adapter / "adapter_model.safetensors", lambda tensors: tensors.pop(f"{Q_PROJ}.lora_B.weight"))
    require_refused(case, tmp_path, ModelError, r"lacks .*q_proj\.lora_B\.weight")


def test_an_adapter_tensor_of_another_shape_is_named(case: Case, tmp_path: Path):
    def widen(tensors: Tensors) -> None:
        tensors[f"{Q_PROJ}.lora_A.weight"] = torch.zeros(4, 64)

    edit_tensors(case.adapter / "adapter_model.safetensors", widen)
    require_refused(case, tmp_path, ModelError, r"q_proj\.lora_A\.weight .* has shape \(4, 64\), .* needs \(4, 32\)")


def test_an_adapter_whose_layer_the_base_files_lack_is_refused(tmp_path: Path):
    case = make_case(make_base(tmp_path / "base", shard="1GB"), tmp_path / "adapter")
    name = "model.layers.0.self_attn.q_proj.weight"
    edit_tensors(tmp_path / "base" / "model.safetensors", lambda tensors: tensors.pop(name))
    require_refused(case, tmp_path, ModelError, r"q_proj\.lora_A\.weight.* would not be used: .* hold no " + name)


def test_an_adapter_with_nan_is_refused(case: Case, tmp_path: Path):
    edit_tensors(
        case.adapter / "adapter_model.safetensors",
        lambda tensors: tensors[f"{Q_PROJ}.lora_A.weight"].fill_(float("nan")),
    )
    require_refused(case, tmp_path, ModelError, r"layers\.0\.self_attn\.q_proj\.weight: .* not finite")


def test_tied_copies_in_the_adapter_that_differ_are_refused(tmp_path: Path):
    base = make_base(tmp_path / "base", tied=True)
    vocabulary = ["embed_tokens", "lm_head"]
    case = make_case(base, tmp_path / "adapter", modules_to_save=vocabulary, ensure_weight_tying=True)
    edit_tensors(
        case.adapter / "adapter_model.safetensors",
        lambda tensors: tensors["base_model.model.lm_head.weight"].zero_(),
    )
    require_refused(case, tmp_path, ModelError, "ties .*, but its file holds different values")


def test_a_base_that_says_tied_but_holds_two_matrices_is_refused(case: Case, tmp_path: Path):
    edit_json(tmp_path / "base" / "config.json", tie_word_embeddings=True)
    require_refused(case, tmp_path, ModelError, "two different matrices; set tie_word_embeddings: false")


def test_a_quantised_base_is_refused(case: Case, tmp_path: Path):
    edit_json(tmp_path / "base" / "config.json", quantization_config={"quant_method": "gptq"})
    require_refused(case, tmp_path, ModelError, r"quantised \(gptq\)")


def test_an_adapter_whose_start_changed_the_base_is_refused(case: Case, tmp_path: Path):
    edit_json(case.adapter / "adapter_config.json", init_lora_weights="pissa")
    require_refused(case, tmp_path, ModelError, "initialised with pissa, which also changed the base weights")


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_an_adapter_that_is_not_lora_is_refused(case: Case, tmp_path: Path):
    edit_json(case.adapter / "adapter_config.json", peft_type="IA3")
    require_refused(case, tmp_path, ModelError, "only LoRA can be merged")


def test_an_adapter_of_a_kind_that_cannot_be_folded_is_refused(case: Case, tmp_path: Path):
    edit_json(case.adapter / "adapter_config.json", alora_invocation_tokens=[1, 2])
    require_refused(case, tmp_path, ModelError, r"_proj\.weight: PEFT cannot merge this adapter: ")


def test_a_base_without_safetensors_is_refused(case: Case, tmp_path: Path):
    for file in (tmp_path / "base").glob("*.safetensors*"):
        file.unlink()
    require_refused(case, tmp_path, ModelError, "holds neither model.safetensors nor model.safetensors.index.json")


def test_a_base_with_a_file_missing_is_refused(case: Case, tmp_path: Path):
    sorted((tmp_path / "base").glob("*.safetensors"))[0].unlink()
    require_refused(case, tmp_path, ModelError, "cannot read .*model-00001-of")


def test_a_folder_that_is_not_empty_is_replaced_only_on_demand(case: Case, tmp_path: Path):
    merged = tmp_path / "merged"
    merged.mkdir()
    (merged / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match=r"merged is not empty; replace it with --overwrite"):
        merge_case(case, merged)
    assert (merged / "mine.txt").read_text() == "kept"
    merge_case(case, merged, overwrite=True)
    assert not (merged / "mine.txt").exists()
    assert (merged / "config.json").is_file()


@pytest.mark.parametrize("folder", ["base", "adapter", "."])
def test_the_output_can_never_replace_its_inputs(case: Case, tmp_path: Path, folder: str):
    with pytest.raises(ConfigError, match="contains an input of the merge"):
        merge_case(case, tmp_path / folder, overwrite=True)
    assert case.adapter.is_dir()


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_merge_leaves_nothing_and_what_it_would_replace(case: Case, tmp_path: Path, overwrite: bool):
    merged = tmp_path / "merged"
    if overwrite:
        merged.mkdir()
        (merged / "mine.txt").write_text("kept")
    before = sorted(tmp_path.rglob("*"))

    def interrupt(written: int, of: int) -> None:
        if written == of // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_case(case, merged, overwrite=overwrite, progress=interrupt)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_base_that_is_not_there_is_refused(case: Case, tmp_path: Path):
    gone = Case(ModelConfig(name=str(tmp_path / "gone")), case.adapter, case.chat, case.ids, case.logits)
    require_refused(gone, tmp_path, ModelError, "there is no folder")
