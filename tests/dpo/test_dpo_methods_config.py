"""Methods and references: each has its own fields, and what makes no sense is refused with one clear message."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import CachedReference, DPOConfig, LiveReference, SeparateReference
from posttrain.dpo.losses.methods import AnyMethod, MixtureMethod, SFTPart
from posttrain.errors import ConfigError

METHODS = get_args(get_args(AnyMethod)[0])
TYPES = {get_args(each.model_fields["type"].annotation)[0]: each for each in METHODS}
# Fields that a method requires besides its type.
NEEDED: dict[str, dict[str, Any]] = {"mixture": {"losses": [{"type": "dpo"}, {"type": "sft", "weight": 0.5}]}}


@pytest.fixture
def load(tmp_path: Path):
    """`load(method=..., reference=...)` reads a config with these sections; None omits a section."""

    def call(**sections: Any) -> DPOConfig:
        config = {
            "model": {"name": "smollm2-135m-instruct"},
            "datasets": {"pairs": {"path": "pairs.jsonl"}},
            "stages": [{"name": "all", "until_step": 4, "mix": {"pairs": 1}}],
            **{key: value for key, value in sections.items() if value is not None},
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return load_config(path, DPOConfig)

    return call


def test_there_are_these_methods():
    assert list(TYPES) == [
        *("dpo", "ipo", "hinge", "robust", "exo", "apo_zero", "apo_down", "kto", "orpo", "simpo", "cpo", "mixture")
    ]


@pytest.mark.parametrize("kind", TYPES)
def test_each_method_is_its_own_class_and_is_read_back_as_it_was_written(kind: str, load, tmp_path: Path):
    config = load(method={"type": kind, **NEEDED.get(kind, {})})
    assert type(config.method) is TYPES[kind]
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(config))
    assert load_config(again, DPOConfig) == config


FORMULAS = {
    "dpo": ("−(1−ε) log σ(β Δ) − ε log σ(−β Δ)", "arXiv:2305.18290"),
    "ipo": ("(r_w/|y_w| − r_l/|y_l| − 1/(2β))²", "arXiv:2310.12036"),
    "hinge": ("max(0, 1 − β Δ)", "arXiv:2305.10425"),
    "robust": ("(−(1−ε) log σ(β Δ) + ε log σ(−β Δ)) / (1 − 2ε)", "arXiv:2403.00409"),
    "exo": ("q log(q / (1−ε)) + (1−q) log((1−q) / ε) with q = σ(β Δ)", "arXiv:2402.00856"),
    "apo_zero": ("1 − σ(β r_w) + σ(β r_l)", "arXiv:2408.06266"),
    "apo_down": ("σ(β r_w) + 1 − σ(β (r_w − r_l))", "arXiv:2408.06266"),
    "kto": ("λ_D (1 − σ(β (r − z))) for a desirable answer, λ_U (1 − σ(β (z − r)))", "arXiv:2402.01306"),
    "orpo": ("−log π(y_w|x) / |y_w| − β log σ(log odds(y_w) − log odds(y_l))", "arXiv:2403.07691"),
    "simpo": ("−log σ(β (log π(y_w|x) / |y_w| − log π(y_l|x) / |y_l|) − γ)", "arXiv:2405.14734"),
    "cpo": ("−log σ(β (log π(y_w|x) − log π(y_l|x))) − α log π(y_w|x) / |y_w|", "arXiv:2401.08417"),
    "mixture": ("Σ weight · loss", "arXiv:2411.10442"),
}


@pytest.mark.parametrize("kind", TYPES)
def test_each_method_gives_its_formula_and_its_paper(kind: str):
    told = " ".join((TYPES[kind].__doc__ or "").split())
    formula, paper = FORMULAS[kind]
    assert formula in told
    assert paper in told


def test_without_a_method_it_is_dpo_and_so_is_a_method_without_a_type(load):
    assert load().method.type == "dpo"
    assert load(method={"beta": 0.3}).method == TYPES["dpo"](type="dpo", beta=0.3)


def test_kto_alone_takes_single_answers_and_three_methods_need_no_reference(load):
    assert [kind for kind, method in TYPES.items() if method.unpaired] == ["kto"]
    assert [kind for kind in TYPES if load(method={"type": kind, **NEEDED.get(kind, {})}).reference is None] == [
        "orpo",
        "simpo",
        "cpo",
    ]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"type": "dop"}, "method.type: should be one of: dpo, ipo, hinge,"),
        ({"type": "dpo", "gamma": 1}, "method.gamma: unknown key"),
        ({"type": "simpo", "label_smoothing": 0.1}, "method.label_smoothing: unknown key"),
        ({"type": "ipo", "label_smoothing": 0.1}, "method.label_smoothing: unknown key"),
        ({"type": "dpo", "beta": 0}, "method.beta: should be greater than 0, found 0"),
        ({"type": "dpo", "label_smoothing": 0.5}, "method.label_smoothing: should be less than 0.5, found 0.5"),
        ({"type": "robust", "label_smoothing": 0.5}, "method.label_smoothing: should be less than 0.5, found 0.5"),
        ({"type": "exo", "label_smoothing": 0}, "method.label_smoothing: should be greater than 0, found 0"),
        ({"type": "kto", "desirable_weight": 0}, "method.desirable_weight: should be greater than 0, found 0"),
        ({"type": "mixture"}, "method.losses: missing"),
    ],
)
def test_a_field_that_a_method_does_not_have_or_cannot_take_is_refused(method: dict[str, Any], message: str, load):
    with pytest.raises(ConfigError) as refused:
        load(method=method)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([{"type": "dpo"}], "at least 2 items"),
        ([{"type": "sft"}, {"type": "sft"}], "a mixture of sft alone never reads the rejected answers"),
        ([{"type": "dpo"}, {"type": "dpo", "beta": 1}], "dpo is in the mixture twice"),
        ([{"type": "dpo"}, {"type": "orpo"}], "dpo needs a reference and orpo does not; mix losses of one"),
        ([{"type": "cpo"}, {"type": "sft"}, {"type": "ipo"}], "ipo needs a reference and cpo does not"),
        ([{"type": "dpo"}, {"type": "kto"}], "losses.1.type: should be one of:"),
        ([{"type": "dpo"}, {"type": "sft", "weight": 0}], "losses.1.weight: should be greater than 0, found 0"),
        ([{"type": "dpo"}, {"type": "sft", "beta": 1}], "losses.1.beta: unknown key"),
    ],
)
def test_mixtures_that_make_no_sense_are_refused(losses: list[dict[str, Any]], message: str, load):
    with pytest.raises(ConfigError) as refused:
        load(method={"type": "mixture", "losses": losses})
    assert message in str(refused.value)


def test_a_mixture_reports_rewards_by_the_beta_of_its_first_preference_loss(load):
    losses = [{"type": "sft"}, {"type": "ipo", "beta": 0.7}, {"type": "dpo", "beta": 0.2, "weight": 3}]
    method = load(method={"type": "mixture", "losses": losses}).method
    assert isinstance(method, MixtureMethod)
    assert method.beta == 0.7
    assert method.losses[0] == SFTPart(type="sft", weight=1.0)
    assert [loss.weight for loss in method.losses] == [1, 1, 3]


def test_a_mixture_of_losses_that_need_no_reference_has_none(load):
    losses = [{"type": "sft"}, {"type": "simpo", "beta": 3}, {"type": "orpo", "weight": 0.5}]
    config = load(method={"type": "mixture", "losses": losses})
    assert config.reference is None
    assert config.method.beta == 3
    with pytest.raises(ConfigError, match="reference: mixture uses no reference; remove the section"):
        load(method={"type": "mixture", "losses": losses}, reference={"type": "live"})


def test_dropout_is_refused_with_the_reason(load):
    with pytest.raises(ConfigError, match="lora: dropout must be 0: with dropout the model would differ from its"):
        load(lora={"r": 4, "dropout": 0.1})
    assert load(lora={"r": 4, "dropout": 0}).lora.r == 4


def test_the_reference_is_cached_unless_told_otherwise(load):
    assert load().reference == CachedReference()
    assert load(reference={}).reference == CachedReference()
    assert load(reference={"type": "live"}).reference == LiveReference(type="live")


def test_a_separate_reference_has_the_keys_of_a_model_and_paths_from_the_folder_of_the_file(load, tmp_path: Path):
    (tmp_path / "teacher").mkdir()
    reference = load(reference={"type": "model", "name": "./teacher", "adapter": "sft", "dtype": "float32"}).reference
    assert isinstance(reference, SeparateReference)
    assert (reference.name, reference.adapter) == (str(tmp_path / "teacher"), tmp_path / "sft")
    assert reference.dtype == "float32"


@pytest.mark.parametrize("kind", ["orpo", "simpo", "cpo"])
def test_a_method_without_a_reference_has_none_and_refuses_one(kind: str, load):
    assert load(method={"type": kind}).reference is None
    with pytest.raises(ConfigError, match=f"reference: {kind} uses no reference; remove the section"):
        load(method={"type": kind}, reference={"type": "cached"})


def test_keys_of_another_reference_are_refused(load):
    with pytest.raises(ConfigError, match=r"reference\.name: unknown key"):
        load(reference={"type": "live", "name": "smollm2-135m-instruct"})
    with pytest.raises(ConfigError, match=r"reference\.name: missing"):
        load(reference={"type": "model"})
