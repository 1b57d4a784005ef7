"""The optimizers of a config: of torch and schedulefree by name, Muon with its AdamW, and one's own class."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from torch import nn
from transformers import AutoModelForCausalLM

from posttrain.config.sections.optim.optimizers import OPTIMIZERS, OptimizerName
from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ConfigError
from posttrain.models.weights.sharding import shard
from posttrain.train.optim.optimizer import averages_weights, load_states, make_optimizers, require_class
from posttrain.train.optim.update import update
from ranks.connected_ranks import on_ranks

ON_ANY_DEVICE: list[OptimizerName] = [name for name, each in OPTIMIZERS.items() if each.package != "bitsandbytes"]


def training(optimizer: Any, **keys: Any) -> TrainingConfig:
    constant = {"schedule": "constant"} if str(optimizer).startswith("schedule_free") else {}
    return TrainingConfig.model_validate({"optimizer": optimizer, **constant, **keys})


class Model(nn.Module):
    """An embedding, a matrix with its bias, a frozen matrix, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.linear = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.head = nn.Linear(2, 3, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.linear(self.embedding(ids)))


def decays(optimizers: list[torch.optim.Optimizer]) -> dict[tuple[int, ...], float]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {tuple(each.shape): group["weight_decay"] for group in groups for each in group["params"]}


@pytest.mark.parametrize("name", ON_ANY_DEVICE)
def test_an_optimizer_has_what_is_trained_and_only_matrices_decay(name: OptimizerName):
    assert decays(make_optimizers(Model(), training(name, weight_decay=0.1))) == {
        (3, 2): 0.1,  # embedding and head have one shape
        (2, 2): 0.1,
        (2,): 0.0,
    }


def test_adam_has_the_numbers_of_the_config():
    settings = TrainingConfig(beta1=0.8, beta2=0.95, epsilon=1e-6, learning_rate=3e-4)
    (optimizer,) = make_optimizers(Model(), settings)
    assert isinstance(optimizer, torch.optim.AdamW)
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["lr"]) == ((0.8, 0.95), 1e-6, 3e-4)


@pytest.mark.parametrize(("name", "default"), [("sgd", 0), ("muon", 0.95), ("schedule_free_sgd", 0.9)])
def test_a_momentum_that_is_not_given_is_the_libraries_own(name: OptimizerName, default: float):
    assert make_optimizers(Model(), training(name))[0].param_groups[0]["momentum"] == default
    assert make_optimizers(Model(), training(name, momentum=0.5))[0].param_groups[0]["momentum"] == 0.5


@pytest.mark.parametrize("name", ON_ANY_DEVICE)
def test_the_states_have_the_size_that_memory_is_estimated_with(name: OptimizerName):
    layer = nn.Linear(128, 128, bias=False)
    (optimizer,) = make_optimizers(layer, training(name))
    if averages_weights(optimizer):
        optimizer.train()  # pyright: ignore[reportAttributeAccessIssue]
    layer(torch.ones(1, 128)).sum().backward()
    optimizer.step()
    tensors = [each for state in optimizer.state.values() for each in state.values() if torch.is_tensor(each)]
    found = sum(each.numel() * each.element_size() for each in tensors) / layer.weight.numel()
    # Adafactor has a number per row and column, and all have the number of steps.
    assert found == pytest.approx(OPTIMIZERS[name].state_bytes, abs=0.1)


def test_muon_has_the_matrices_of_the_layers_and_adamw_the_rest():
    model, alone = Model(), None
    muon, adamw = make_optimizers(model, training("muon", learning_rate=0.1, beta1=0.8))
    alone = copy.deepcopy(model)
    expected = [
        torch.optim.Muon([alone.linear.weight], lr=0.1, weight_decay=0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([alone.embedding.weight, alone.linear.bias, alone.head.weight], lr=0.1, betas=(0.8, 0.999)),
    ]
    expected[1].param_groups[0]["weight_decay"] = 0
    for each, optimizers in ((model, [muon, adamw]), (alone, expected)):
        each(torch.tensor([0, 1])).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-7)


def test_ones_own_class_has_its_arguments_and_decays_matrices_only():
    own = {"class": "torch.optim.Adagrad", "arguments": {"lr_decay": 0.5, "weight_decay": 0.1}}
    optimizers = make_optimizers(Model(), training(own, learning_rate=0.3))
    group = optimizers[0].param_groups[0]
    assert isinstance(optimizers[0], torch.optim.Adagrad) and (group["lr"], group["lr_decay"]) == (0.3, 0.5)
    assert decays(optimizers) == {(3, 2): 0.1, (2, 2): 0.1, (2,): 0.0}


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"class": "torch.optim.Adagrad", "arguments": {"lr_dekay": 1}}, "lr_dekay.*arguments are lr_decay, weight_d"),
        ({"class": "torch.optim.SGD", "arguments": {"momentum": -1}}, "SGD cannot be created: .*momentum"),
        ({"class": "torch.optim.Adagrat"}, "torch.optim.Adagrat is not an optimizer"),
        ({"class": "torch.nn.Linear"}, "torch.nn.Linear is not an optimizer"),
        ({"class": "no_such_package.Optimizer"}, "there is no module 'no_such_package'"),
        ({"class": "torch.no_such_part.Optimizer"}, "there is no module 'torch.no_such_part'"),
    ],
    ids=range(6),
)
def test_a_class_that_cannot_be_created_is_refused_without_a_model(own: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=f"training.optimizer: .*{told}"):
        require_class(training(own))


class RowScales(torch.optim.Optimizer):
    """Keeps one number for each row of a matrix."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["rows"] = weight.grad.abs().sum(dim=1)


def told_of_shares(name: str) -> str:
    """What making an optimizer over a shared model's weights raises."""
    model = nn.Linear(4, 4, bias=False)
    shard(model, torch.device("cpu"))
    try:
        make_optimizers(model, training({"class": name}))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("torch.optim.Adagrad", ""),
        ("torch.optim.Rprop", "torch.optim.Rprop cannot train a matrix of which each process has a share"),
        (f"{__name__}.RowScales", f"{__name__}.RowScales has a state rows that is not as large as its weight"),
    ],
)
def test_a_class_that_does_not_take_shares_of_weights_is_refused(tmp_path: Path, name: str, told: str):
    for each in on_ranks(told_of_shares, tmp_path, name):
        assert each.startswith(f"training.optimizer: {told}") if told else not each


def test_a_class_that_moves_weights_without_a_gradient_is_refused_where_some_must_stay():
    require_class(training({"class": "torch.optim.Rprop"}), start="pissa")
    decaying = {"class": "torch.optim.AdamW"}  # by 0.01, unless told
    require_class(training(decaying))
    require_class(training({**decaying, "arguments": {"weight_decay": 0}}), start="pissa")
    with pytest.raises(ConfigError, match=r"AdamW changes weights .* lora.init: pissa .*weight_decay: 0"):
        require_class(training(decaying), start="pissa")


def test_only_optimizers_with_an_average_of_their_own_are_known_to_have_one():
    found = [name for name in ON_ANY_DEVICE if averages_weights(require_class(training(name)))]
    assert found == ["schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd"]


def resumed(before: TrainingConfig, after: TrainingConfig) -> float:
    """The weight after a step with gradient 1 under each of two configs, from 1, with learning rate 0.1."""
    weight = nn.Linear(1, 1, bias=False)
    states: dict[str, Any] = {}
    nn.init.ones_(weight.weight)
    for settings in (before, after):
        (optimizer,) = make_optimizers(weight, settings)
        if states:
            load_states(optimizer, states, settings)
        weight.weight.grad = torch.ones(1, 1)
        optimizer.step()
        states = optimizer.state_dict()
    return weight.weight.item()


def test_a_resumed_optimizer_has_its_states_and_the_numbers_of_todays_config():
    rate = {"learning_rate": 0.1}
    # Momentum: 1, then 0.9 · 1 + 1 = 1.9; or 0.5 · 1 + 1 = 1.5. 1 − 0.1 − 0.19 = 0.71; 1 − 0.1 − 0.15 = 0.75.
    assert resumed(*[training("sgd", momentum=0.9, **rate)] * 2) == pytest.approx(0.71)
    assert resumed(training("sgd", momentum=0.9, **rate), training("sgd", momentum=0.5, **rate)) == pytest.approx(0.75)
    # In SGD the decay joins the gradient: 1 + 0.5 · 0.9 = 1.45, and 0.9 − 0.145 = 0.755.
    assert resumed(training("sgd", **rate), training("sgd", weight_decay=0.5, **rate)) == pytest.approx(0.755)
    # AdamW: both moments are 1 once their bias is corrected, so the first step is 0.1. At the second, as at step 2 with
    # today's betas of 0: 1 / √1. Decoupled decay of 0.5 first: 0.9 · (1 − 0.1 · 0.5) = 0.855, and 0.855 − 0.1 = 0.755.
    adam = training("adamw", beta1=0, beta2=0, weight_decay=0.5, **rate)
    assert resumed(training("adamw", **rate), adam) == pytest.approx(0.755, abs=1e-6)
    # With β₁ = 0.5: the mean, 0.1 · 1, becomes 0.5 · 0.1 + 0.5 = 0.55, over 1 − 0.5² = 0.75; the mean square, 0.001,
    # becomes 0.999 · 0.001 + 0.001 = 0.001999, over 1 − 0.999² = 0.001999. So 0.9 − 0.1 · 0.55 / 0.75 = 0.826667.
    assert resumed(training("adamw", **rate), training("adamw", beta1=0.5, **rate)) == pytest.approx(0.826667, abs=1e-6)


def test_ones_own_optimizer_resumes_with_the_arguments_that_it_had():
    own = training({"class": "torch.optim.SGD", "arguments": {"momentum": 0.9}})
    (optimizer,) = make_optimizers(Model(), own)
    states = optimizer.state_dict()
    states["param_groups"][0]["momentum"] = 0.5  # as by a class that lowers it step by step
    load_states(optimizer, states, own)
    assert optimizer.param_groups[0]["momentum"] == 0.5


def rates_after_an_update(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, float]:
    names = {id(each): name for name, each in model.named_parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {names[id(each)]: group["lr"] for group in groups for each in group["params"]}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_lora_plus_multiplies_the_rate_of_the_matrices_b_at_every_step_as_pefts_own(tiny_model, name: OptimizerName):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(target_modules="all-linear"))
    optimizers = make_optimizers(model, training(name, lora_plus_ratio=16))
    update(optimizers, torch.amp.GradScaler("cpu", enabled=False), 1e-3, 0)
    found = rates_after_an_update(model, optimizers)
    theirs = create_loraplus_optimizer(model, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16)  # pyright: ignore[reportArgumentType]
    assert found == rates_after_an_update(model, [theirs])
    assert {each for name, each in found.items() if "lora_B" in name} == {16e-3} and set(found.values()) == {
        1e-3,
        16e-3,
    }


def test_lora_plus_without_lora_is_refused():
    with pytest.raises(ConfigError, match="lora_plus_ratio: no LoRA matrix B is trained"):
        make_optimizers(Model(), training("adamw", lora_plus_ratio=4))
