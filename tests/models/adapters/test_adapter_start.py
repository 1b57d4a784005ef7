"""Adapters that start from the base's weights: the base stays, and what is trained is what PEFT would train."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.optim.optimizers import OPTIMIZERS
from posttrain.config.sections.training import EMAConfig, TrainingConfig
from posttrain.errors import ModelError
from posttrain.merge.merge import merge_adapter
from posttrain.models.adapters.lora import add_adapter
from posttrain.models.adapters.start import start_from_weights
from posttrain.models.frozen import start_of_training
from posttrain.models.weights.checkpoint import load_trained_weights
from posttrain.models.weights.merged import write_merged_weights
from posttrain.train.optim.averages import open_averages
from posttrain.train.optim.optimizer import make_optimizers
from posttrain.train.optim.update import update

RANK, ALPHA = 4, 6
IDS = torch.randint(3, 300, (4, 24), generator=torch.Generator().manual_seed(7))
EXACT = pytest.mark.parametrize("init", ["pissa", "olora"])
OPTIMIZERS_HERE = [name for name, each in OPTIMIZERS.items() if each.package != "bitsandbytes"]


def lora(init: str | None, **keys) -> LoraConfig:
    return LoraConfig.model_validate({"r": RANK, "alpha": ALPHA, "init": init, **keys})


def base_of(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)


def peft_model(folder: Path, init: str, *, rslora: bool = False) -> PeftModel:
    """PEFT's own adapter of that start, on the base that PEFT changes."""
    torch.manual_seed(0)
    config = PeftLoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", init_lora_weights=init, use_rslora=rslora
    )
    model = get_peft_model(base_of(folder), config)
    assert isinstance(model, PeftModel)
    return model


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def losses(model, settings: TrainingConfig | None = None, steps: int = 4) -> list[float]:
    """The losses of a few steps on the same tokens."""
    settings = settings or TrainingConfig(learning_rate=1e-2)
    optimizers, scaler = make_optimizers(model, settings), torch.amp.GradScaler(enabled=False)
    averages, found = open_averages(model, optimizers, settings.ema, None), []
    model.train()
    for step in range(steps):
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        update(optimizers, scaler, settings.learning_rate, settings.max_grad_norm)
        averages.update(step)
        found.append(float(loss.detach()))
    for kept in (averages.exported(), averages.exported()):  # swaps averages in and out
        with kept:
            pass
    return found


def halves(model) -> dict[str, tuple[torch.Tensor, ...]]:
    """What is trained and what is not, of all of LoRA's matrices."""
    found = {name: each.detach().clone() for name, each in model.named_parameters() if ".lora_" in name}
    return {name: each.chunk(2, dim=int("lora_B" in name)) for name, each in found.items()}


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_16", "olora"])
def test_it_starts_as_the_base_which_stays_as_it_is(train, tiny_model, init):
    model = train(lora(init)).model
    before = logits(base_of(tiny_model))
    torch.testing.assert_close(logits(model), before, atol=1e-6, rtol=0)
    losses(model)
    assert (logits(model) - before).abs().max() > 1e-2
    with model.disable_adapter():
        assert torch.equal(logits(model), before)


def test_the_start_depends_on_weights_and_seed_alone(train):
    starts = []
    for drawn in (0, 7):
        torch.rand(drawn)
        starts.append(train(lora("pissa_niter_16"), seed=3).model.state_dict())
    assert all(torch.equal(each, starts[1][name]) for name, each in starts[0].items())


@EXACT
@pytest.mark.parametrize("rslora", [False, True])
def test_it_trains_as_pefts_own_start_does(train, tiny_model, init, rslora):
    model, theirs = train(lora(init, rslora=rslora)).model, peft_model(tiny_model, init, rslora=rslora)
    found = losses(model)
    assert found[-1] < found[0] - 0.1
    assert found == pytest.approx(losses(theirs), abs=1e-5)
    torch.testing.assert_close(logits(model), logits(theirs), atol=1e-4, rtol=0)


def test_lora_plus_trains_it_as_pefts_own_start(train, tiny_model):
    settings = TrainingConfig(learning_rate=1e-3, lora_plus_ratio=16)
    ours = losses(train(lora("pissa")).model, settings)
    assert ours == pytest.approx(losses(peft_model(tiny_model, "pissa"), settings), abs=1e-5)
    assert abs(ours[-1] - losses(train(lora("pissa")).model, TrainingConfig(learning_rate=1e-3))[-1]) > 1e-3


@EXACT
def test_saved_and_merged_in_both_ways_it_computes_the_same_on_the_original_base(train, tiny_model, tmp_path, init):
    model = train(lora(init)).model
    losses(model)
    model.save_pretrained(tmp_path / "adapter")
    write_merged_weights(model, tmp_path / "live", torch.float32)
    base = ModelConfig(name=str(tiny_model), backend="hf", dtype="float32")
    merge_adapter(base, tmp_path / "adapter", tmp_path / "merged", chat=ChatConfig())
    for found in (
        PeftModel.from_pretrained(base_of(tiny_model), tmp_path / "adapter"),
        base_of(tmp_path / "merged"),
        base_of(tmp_path / "live"),
    ):
        torch.testing.assert_close(logits(found), logits(model), atol=1e-5, rtol=0)


@EXACT
def test_it_is_saved_as_pefts_conversion_would_save_it(train, tiny_model, tmp_path, init):
    model, theirs = train(lora(init)).model, peft_model(tiny_model, init)
    theirs.peft_config["default"].init_lora_weights = True  # pyright: ignore[reportAttributeAccessIssue]
    theirs.save_pretrained(str(tmp_path / "start"))
    for each in (model, theirs):
        losses(each)
    model.save_pretrained(str(tmp_path / "ours"))
    theirs.save_pretrained(str(tmp_path / "theirs"), path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    ours, converted = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("ours", "theirs"))
    torch.testing.assert_close(ours, converted, atol=1e-4, rtol=0)
    described = [PeftLoraConfig.from_pretrained(str(tmp_path / name)) for name in ("ours", "theirs")]
    assert [(each.r, each.lora_alpha, each.init_lora_weights) for each in described] == [(8, 12, True)] * 2


@pytest.mark.parametrize("name", OPTIMIZERS_HERE)
def test_no_optimizer_changes_the_frozen_halves(train, name):
    constant = {"schedule": "constant"} if name.startswith("schedule_free") else {"ema": EMAConfig(decay=0.6)}
    model = train(lora("pissa", target_modules=["q_proj", "down_proj"])).model
    before = halves(model)
    # RAdam is still for the first five steps.
    losses(model, TrainingConfig.model_validate({"optimizer": name, "learning_rate": 1e-2, **constant}), steps=7)
    for matrix, (trained, frozen) in halves(model).items():
        assert not torch.equal(trained, before[matrix][0])
        assert torch.equal(frozen, before[matrix][1])


def test_the_start_of_training_is_the_base(train, tiny_model):
    model = train(lora("pissa")).model
    frozen = start_of_training(model, new_adapter=True, asked_later=True)
    losses(model)
    with frozen.asked() as asked:
        assert torch.equal(asked(input_ids=IDS).logits, logits(base_of(tiny_model)))


def test_weights_of_a_checkpoint_are_trained_on_like_those_of_the_start(train, tmp_path):
    model, again = train(lora("olora")).model, train(lora("olora")).model
    losses(model)
    model.save_pretrained(tmp_path)
    load_trained_weights(again, tmp_path)
    assert losses(again) == losses(model)
    ours, theirs = halves(model), halves(again)
    assert all(torch.equal(each, theirs[name][part]) for name, both in ours.items() for part, each in enumerate(both))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"r": 65}, r"^lora\.init: pissa takes lora\.r 65 of the 64 directions of model\.layers\.0\.[^\n]*; lower r$"),
        (
            {"target_modules": ["q_proj", "embed_tokens"]},
            r"^lora\.init: pissa starts from the weights of linear layers, and model\.embed_tokens is none; name",
        ),
    ],
    ids=["a rank above that of a weight", "an embedding"],
)
def test_what_a_layer_cannot_start_from_is_refused(tiny_model, keys, message):
    config = lora("pissa", **keys)
    model = add_adapter(LlamaForCausalLM.from_pretrained(tiny_model), config, (), 0)
    with pytest.raises(ModelError, match=message):
        start_from_weights(model, config, 0)
