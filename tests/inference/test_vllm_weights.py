"""A running vLLM takes new weights and adapters, and then answers as transformers does with them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loaded_model import NEVER, Loaded
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from posttrain.errors import ModelError
from posttrain.inference.engine import GenerationRequest, Sampling
from posttrain.inference.vllm import VllmEngine
from posttrain.inference.vllm_load import VllmOptions
from posttrain.models.weights.merged import write_merged_weights
from sharp_model import write_adapter
from vllm_model import write_vllm_model

# vLLM caches each 128-token block of a prompt: a stale cache would show.
LONG = [GenerationRequest(tuple(5 + (7 * row + 3 * at) % 370 for at in range(300))) for row in range(4)]
GREEDY = Sampling(30)


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vllm_model(tiny_model, tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[VllmEngine]:
    engine = VllmEngine(folder, NEVER, VllmOptions("float32", max_length=512, adapter_rank=4, eager=True))
    yield engine
    engine.close()


@pytest.fixture
def engine(running: VllmEngine, folder: Path) -> VllmEngine:
    """The engine with its original weights and no adapter, whatever the last test did."""
    running.use_adapter(None)
    running.load_weights(folder)
    return running


@pytest.fixture
def base(folder: Path, load: Callable[..., Loaded]) -> Loaded:
    return load(folder)


def vllm_ids(engine: VllmEngine) -> list[tuple[int, ...]]:
    found = dict(engine.generate(LONG, GREEDY))
    return [found[key].token_ids for key in sorted(found)]


def hf_ids(loaded: Loaded) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in loaded.ask(LONG, GREEDY)]


def disturbed(model: Any, seed: int) -> Any:
    """The model with all weights perturbed by half their spread, including the embedding and thus the tied head."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = parameter.std() / 2 if parameter.dim() > 1 else torch.tensor(0.1)
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return model


def with_adapter(model: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False, **options)
    return get_peft_model(model, config)


def test_new_weights_answer_as_in_transformers_and_the_old_ones_come_back(engine, base: Loaded, tmp_path: Path):
    first = hf_ids(base)
    assert vllm_ids(engine) == first
    answers = [first]
    for seed in (1, 2):
        write_merged_weights(disturbed(base.model, seed), tmp_path, torch.float32)
        engine.load_weights(tmp_path)
        answers.append(vllm_ids(engine))
        assert answers[-1] == hf_ids(base)
    assert not set(answers[0]) & set(answers[1]) and not set(answers[1]) & set(answers[2])


def test_the_merged_weights_of_an_adapter_in_training_answer_as_the_live_model(engine, base: Loaded, tmp_path: Path):
    # Vocabulary rows are trained too, so vLLM could not load this as an adapter.
    model = with_adapter(base.model, trainable_token_indices={"embed_tokens": [5, 6, 7, 8, 9]})
    before = vllm_ids(engine)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.01
    write_merged_weights(model, tmp_path, torch.float32)
    engine.load_weights(tmp_path)
    assert vllm_ids(engine) == hf_ids(Loaded(model, base.tokenizer))
    assert not set(vllm_ids(engine)) & set(before)


def test_an_adapter_answers_as_in_transformers_and_goes_again(engine, folder: Path, load, tmp_path: Path):
    before = vllm_ids(engine)
    adapter = write_adapter(folder, tmp_path / "adapter")
    for seed in (1, 2):  # the same folder, with other weights
        write_adapter(folder, adapter, seed)
        engine.use_adapter(adapter)
        assert vllm_ids(engine) == hf_ids(load(folder, adapter))
    assert not set(vllm_ids(engine)) & set(before)
    engine.use_adapter(None)
    assert vllm_ids(engine) == before


def test_weights_can_change_under_an_adapter(engine, folder: Path, base: Loaded, tmp_path: Path):
    adapter = write_adapter(folder, tmp_path / "adapter")
    write_merged_weights(disturbed(base.model, 1), tmp_path / "weights", torch.float32)
    engine.use_adapter(adapter)
    vllm_ids(engine)
    engine.load_weights(tmp_path / "weights")
    adapted = Loaded(with_files_of(adapter, tmp_path / "weights"), base.tokenizer)
    assert vllm_ids(engine) == hf_ids(adapted)


def with_files_of(adapter: Path, weights: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(weights, dtype="float32"), adapter).eval()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["norm"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
        ({"trainable_token_indices": {"embed_tokens": [5]}}, "trainable_token_indices"),
    ],
)
def test_an_adapter_that_vllm_would_not_follow_is_refused(engine, base, tmp_path: Path, options, named: str):
    before = vllm_ids(engine)
    with_adapter(base.model, **options).save_pretrained(tmp_path, save_embedding_layers=False)
    with pytest.raises(ModelError, match=f"cannot use the adapter in .*{named}"):
        engine.use_adapter(tmp_path)
    assert vllm_ids(engine) == before


def test_an_adapter_of_a_higher_rank_than_there_is_room_for_is_refused(engine, folder: Path, tmp_path: Path):
    adapter = write_adapter(folder, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "r": 9}))
    with pytest.raises(ModelError, match="rank 9 is greater than max_lora_rank 8"):
        engine.use_adapter(adapter)


def test_folders_without_weights_or_adapter_are_refused(engine: VllmEngine, tmp_path: Path):
    with pytest.raises(ModelError, match="no safetensors"):
        engine.load_weights(tmp_path)
    with pytest.raises(ModelError, match=r"no readable adapter_config\.json"):
        engine.use_adapter(tmp_path)


def test_after_weights_that_do_not_fit_others_that_do_can_be_loaded(engine, base: Loaded, folder, tmp_path: Path):
    with_adapter(base.model).save_pretrained(tmp_path)
    before = vllm_ids(engine)
    with pytest.raises(ModelError, match="cannot load the weights in"):
        engine.load_weights(tmp_path)
    engine.load_weights(folder)
    assert vllm_ids(engine) == before
