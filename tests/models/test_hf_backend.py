"""Models from transformers and PEFT: what is trainable, in which precision, and what survives saving."""

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoTokenizer

from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.models.hf import HfBackend
from posttrain.models.load import choose_backend

IDS = torch.tensor([[1, 30, 40, 50, 2]])


def trainable(model) -> dict[str, torch.nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def dtypes(model, *, requires_grad: bool) -> set[torch.dtype]:
    return {each.dtype for each in model.parameters() if each.requires_grad is requires_grad}


def test_an_adapter_is_trained_in_float32_on_a_base_in_bfloat16(train):
    lora = LoraConfig(r=2, modules_to_save=("lm_head",), dora=True)
    loaded = train(lora, dtype="bfloat16")
    assert dtypes(loaded.model, requires_grad=True) == {torch.float32}
    assert dtypes(loaded.model, requires_grad=False) == {torch.bfloat16}
    assert loaded.compute_dtype is torch.bfloat16


def test_full_fine_tuning_trains_every_weight_in_float32(train):
    loaded = train(None, dtype="bfloat16")
    assert dtypes(loaded.model, requires_grad=True) == {torch.float32}
    assert dtypes(loaded.model, requires_grad=False) == set()
    assert len(trainable(loaded.model)) == 20  # 9 in each of two layers, the embedding, the last norm
    assert loaded.compute_dtype is torch.bfloat16


def test_what_is_loaded_are_the_weights_in_the_folder(train, tiny_model):
    weights = load_file(tiny_model / "model.safetensors")
    loaded = dict(train(None).model.named_parameters())
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_a_training_keeps_no_cache_of_keys_and_values(train):
    assert train().model.config.use_cache is False


def test_the_seed_alone_decides_how_an_adapter_starts(train):
    one, same, other = (trainable(train(seed=seed).model) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_training_goes_on_from_a_saved_adapter(train, adapter):
    loaded = train(adapter=adapter)
    saved = load_file(adapter / "adapter_model.safetensors")
    now = {name.replace(".default", ""): each for name, each in trainable(loaded.model).items()}
    assert now.keys() == saved.keys()
    assert all(torch.equal(now[name], saved[name]) for name in saved)
    assert any(each.abs().sum() > 0 for name, each in now.items() if "lora_B" in name)


def test_for_inference_nothing_is_trainable(tiny_model, adapter):
    config = ModelConfig(name=str(tiny_model), dtype="bfloat16")
    for folder in (None, adapter):
        loaded = HfBackend().load_for_inference(config, folder, chatml=True)
        assert trainable(loaded.model) == {}
        assert not loaded.model.training
        assert loaded.model.config.use_cache is not False


def test_the_adapter_changes_what_the_model_says(tiny_model, adapter):
    config = ModelConfig(name=str(tiny_model), dtype="float32")
    with torch.no_grad():
        plain, changed = (
            HfBackend().load_for_inference(config, folder, chatml=True).model(input_ids=IDS).logits
            for folder in (None, adapter)
        )
    assert not torch.allclose(plain, changed)


def test_inference_computes_what_training_computes(train, tiny_model, adapter):
    config = ModelConfig(name=str(tiny_model), dtype="float32")
    inference = HfBackend().load_for_inference(config, adapter, chatml=True)
    with torch.no_grad():
        expected = train(adapter=adapter).model.eval()(input_ids=IDS).logits
        assert torch.equal(inference.model(input_ids=IDS).logits, expected)


@pytest.mark.parametrize("count", [2, 6])  # the tiny model has four spare rows
def test_the_rows_of_added_tokens_are_trained_and_survive_saving(train, tmp_path, count):
    added = tuple(f"<new {index}>" for index in range(count))
    loaded = train(added_tokens=added, dtype="bfloat16")
    ids = tuple(range(380, 380 + count))
    assert loaded.new_token_ids == ids
    assert loaded.tokenizer.convert_tokens_to_ids(list(added)) == list(ids)
    rows = next(each for name, each in trainable(loaded.model).items() if "trainable_tokens" in name)
    assert rows.shape == (count, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits = loaded.model(input_ids=torch.tensor([[1, *ids]])).logits
        functional.cross_entropy(logits[0, :-1].float(), torch.tensor(ids)).backward()
    assert rows.grad.abs().sum(dim=1).min() > 0
    with torch.no_grad():
        rows += torch.randn_like(rows)
    loaded.model.save_pretrained(tmp_path)
    again = train(added_tokens=added, dtype="bfloat16", adapter=tmp_path)
    restored = next(each for name, each in trainable(again.model).items() if "trainable_tokens" in name)
    assert torch.equal(restored, rows)


def test_full_fine_tuning_with_added_tokens_trains_their_rows_as_all_others(train):
    loaded = train(None, added_tokens=("<new>",))
    assert loaded.new_token_ids == (380,)
    embedding = loaded.model.get_input_embeddings().weight
    torch.testing.assert_close(embedding[380], embedding[:380].mean(dim=0))


def test_the_tokenizer_alone_is_the_one_that_comes_with_the_model(tiny_model, train):
    config = ModelConfig(name=str(tiny_model), added_tokens=("<new>",))
    alone = HfBackend().load_tokenizer(config, chatml=True)
    assert alone.get_vocab() == train(added_tokens=("<new>",)).tokenizer.get_vocab()


def test_a_tokenizer_without_a_padding_token_pads_with_its_end_token(copied, train):
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(copied)
    loaded = train(name=str(copied))
    assert loaded.tokenizer.pad_token == loaded.tokenizer.eos_token == "<|im_end|>"


def gradients(loaded) -> dict[str, torch.Tensor]:
    loaded.model.train()
    logits = loaded.model(input_ids=IDS).logits
    functional.cross_entropy(logits[0, :-1], IDS[0, 1:]).backward()
    return {name: each.grad for name, each in trainable(loaded.model).items()}


@pytest.mark.parametrize("lora", [LoraConfig(r=2), None], ids=["lora", "full"])
def test_gradient_checkpointing_is_on_if_asked_for_and_changes_no_gradient(train, lora):
    kept, recomputing = train(lora), train(lora, checkpointing=True)
    assert [each.model.is_gradient_checkpointing for each in (kept, recomputing)] == [False, True]
    plain, recomputed = gradients(kept), gradients(recomputing)
    assert any(each.abs().sum() > 0 for each in plain.values())
    for name in plain:
        torch.testing.assert_close(recomputed[name], plain[name])


def test_an_attention_that_was_asked_for_is_used(train):
    assert train(attention="eager").model.config._attn_implementation == "eager"


def test_without_an_accelerator_auto_is_this_backend(tiny_model):
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    assert choose_backend(ModelConfig(name=str(tiny_model))).name == "hf"
