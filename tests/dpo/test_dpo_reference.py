"""All kinds of reference agree if their weights are the same, and do not change during training."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from dpo.dpo_runs import TRAINING, Built, build, training_rows, write_run
from posttrain.base.cache import cache_dir
from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.plan import show_plan
from posttrain.dpo.train import train
from posttrain.errors import ModelError
from posttrain.models.frozen import without_dropout
from posttrain.models.weights.checkpoint import save_trained_weights
from running import metrics

KTO = {"type": "kto"}


def moved(built: Built, amount: float = 0.1) -> None:
    """Change the trained weights, but no copy of them, by random amounts."""
    draw = torch.Generator().manual_seed(1)
    for parameter in built.loaded.model.parameters():
        if parameter.requires_grad:
            parameter.data += amount * torch.randn(parameter.shape, generator=draw)


def references(built: Built) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Reference log-probabilities of the run's first micro-batch, and of each side of its data sets."""
    batch = built.recipe.batch(0)[0]
    built.loaded.model.train()
    sides = [side for both in built.recipe.rows for side in built.recipe.reference.of_dataset(both)]
    return built.recipe.reference.of_batch(batch), sides


def of_policy(built: Built) -> list[torch.Tensor]:
    return [side for both in built.recipe.rows for side in built.recipe.policy_logprobs(both)]


def by_whole_logits(built: Built, model: Any) -> list[list[float]]:
    """log p of every answer of each side, from the logits of all positions."""
    found: list[list[float]] = []
    for side in [side for both in built.recipe.rows for side in both.sides]:
        found.append([])
        for ids, trained in map(side.rows.row, range(len(side.rows))):
            with torch.no_grad():
                spread = model(input_ids=torch.tensor(ids.tolist())[None]).logits[0].log_softmax(-1)
            found[-1].append(sum(float(spread[at - 1, ids[at]]) for at in np.flatnonzero(trained)))
    return found


@pytest.fixture
def sft_adapter(tiny_model: Path, tmp_path: Path) -> Path:
    """An adapter with changed weights and dropout, as an SFT run leaves it."""
    (tmp_path / "sft").mkdir()
    built = build(write_run(tmp_path / "sft", tiny_model, lora={"r": 4}, method={"type": "simpo"}))
    moved(built)
    built.loaded.model.peft_config["default"].lora_dropout = 0.5
    built.loaded.model.save_pretrained(tmp_path / "sft" / "adapter")
    return tmp_path / "sft" / "adapter"


def start(tiny_model: Path, kind: str, adapter: Path) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Sections of a run that starts from the base, an adapter or all weights, and a loader of that model."""

    def base() -> Any:
        return AutoModelForCausalLM.from_pretrained(tiny_model)

    model = {"name": str(tiny_model), "dtype": "float32"}
    if kind == "adapter":
        sections = {"model": {**model, "adapter": str(adapter)}, "lora": ...}
        return sections, lambda: PeftModel.from_pretrained(base(), adapter).eval()
    return {"model": model, "lora": {"r": 4} if kind == "base" else None}, base


@pytest.mark.parametrize("method", [{"type": "dpo"}, KTO], ids=["dpo", "kto"])
@pytest.mark.parametrize("kind", ["base", "adapter", "all weights"])
def test_all_kinds_of_reference_are_the_model_as_training_starts(
    kind: str, method: dict[str, Any], tiny_model: Path, tmp_path: Path, sft_adapter: Path
) -> None:
    sections, started_from = start(tiny_model, kind, sft_adapter)
    separate = {"type": "model", "name": str(tiny_model), "dtype": "float32"}
    if kind == "adapter":
        separate["adapter"] = str(sft_adapter)
    held_out = {"dataset": {"path": "held_out.jsonl"}}
    for reference in ({"type": "cached"}, {"type": "live"}, separate):
        config = write_run(tmp_path, tiny_model, reference=reference, method=method, validation=held_out, **sections)
        built = build(config)
        wanted = by_whole_logits(built, started_from())
        moved(built)

        of_batch, parts = references(built)
        assert [part.tolist() for part in parts] == [pytest.approx(each, abs=2e-3) for each in wanted]
        # The first micro-batch has all training rows, or half of them for kto.
        everything = torch.cat(parts)
        numbers = built.recipe.batch(0)[0]["row_numbers"]
        torch.testing.assert_close(of_batch, everything[numbers], rtol=1e-5, atol=1e-4)
        # The trained model differs by now.
        assert not torch.allclose(torch.cat(of_policy(built)), everything, atol=0.1)


def test_a_run_from_an_sft_adapter_has_that_adapter_as_its_reference_and_not_the_base(
    tiny_model: Path, tmp_path: Path, sft_adapter: Path
) -> None:
    sections, _ = start(tiny_model, "adapter", sft_adapter)
    built = build(write_run(tmp_path, tiny_model, **sections))
    _, parts = references(built)
    base = by_whole_logits(built, AutoModelForCausalLM.from_pretrained(tiny_model))
    assert max(abs(one - other) for one, other in zip(parts[0].tolist(), base[0], strict=True)) > 0.5
    # Nothing is trained yet, so the model is still its own reference.
    torch.testing.assert_close(parts, of_policy(built))


@pytest.mark.parametrize("modules", [(), ("lm_head",)])
def test_a_frozen_copy_of_an_adapter_is_not_trained_and_not_saved(
    modules: tuple[str, ...], tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "sft").mkdir()
    lora = {"r": 4, "modules_to_save": list(modules)}
    first = build(write_run(tmp_path / "sft", tiny_model, lora=lora, method={"type": "simpo"}))
    moved(first)
    names = [name for name, parameter in first.loaded.model.named_parameters() if parameter.requires_grad]
    first.loaded.model.save_pretrained(tmp_path / "sft" / "adapter")

    sections, _ = start(tiny_model, "adapter", tmp_path / "sft" / "adapter")
    built = build(write_run(tmp_path, tiny_model, reference={"type": "live"}, **sections))

    def trained() -> list[str]:
        return [name for name, parameter in built.loaded.model.named_parameters() if parameter.requires_grad]

    assert trained() == names
    before = torch.cat(references(built)[1])
    built.train()
    assert trained() == names
    built.recipe.reference._datasets.clear()
    torch.testing.assert_close(torch.cat(references(built)[1]), before)
    assert not torch.allclose(torch.cat(of_policy(built)), before, atol=0.1)

    save_trained_weights(built.loaded, tmp_path / "saved")
    assert not (tmp_path / "saved" / "reference").exists()
    saved = load_file(tmp_path / "saved" / "adapter_model.safetensors")
    assert saved.keys() == load_file(tmp_path / "sft" / "adapter" / "adapter_model.safetensors").keys()
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path / "saved").eval()
    assert by_whole_logits(built, again)[0] == pytest.approx(of_policy(built)[0].tolist(), abs=2e-3)


def kept() -> dict[Path, int]:
    """The cached files, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in (cache_dir() / "reference").glob("*.npy")}


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own_model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.mark.usefixtures("own_cache")
def test_the_numbers_are_computed_once_whatever_the_new_adapter(
    tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = references(build(write_run(tmp_path, tiny_model)))[1]
    assert "reference log-probabilities of datasets.a: 4 rows" in capfd.readouterr().err
    files = kept()
    assert len(files) == 1
    other = build(
        write_run(tmp_path, tiny_model, lora={"r": 8, "target_modules": ["q_proj"]}, method={"type": "ipo"}),
        "training.seed=3",
    )
    assert [part.tolist() for part in references(other)[1]] == [part.tolist() for part in one]
    assert kept() == files
    assert "reference log-probabilities" not in capfd.readouterr().err


@pytest.mark.usefixtures("own_cache")
def test_changed_weights_are_never_compared_with_old_numbers(own_model: Path, tmp_path: Path) -> None:
    config = write_run(tmp_path, own_model)
    before = references(build(config))[1]
    files = kept()
    weights = load_file(own_model / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name][0, 0] += 1.0
    save_file(weights, own_model / "model.safetensors", metadata={"format": "pt"})
    built = build(config)
    wanted = by_whole_logits(built, AutoModelForCausalLM.from_pretrained(own_model))
    after = references(built)[1]
    assert [part.tolist() for part in after] == [pytest.approx(each, abs=2e-3) for each in wanted]
    assert not torch.equal(after[0], before[0])
    assert len(kept()) == 2
    assert files.items() <= kept().items()


@pytest.mark.usefixtures("own_cache")
def test_an_adapter_to_go_on_from_is_part_of_the_weights(tiny_model: Path, tmp_path: Path, sft_adapter: Path) -> None:
    sections, _ = start(tiny_model, "adapter", sft_adapter)
    config = write_run(tmp_path, tiny_model, **sections)
    before = references(build(config))[1]
    weights = load_file(sft_adapter / "adapter_model.safetensors")
    save_file({name: weight * 1.5 for name, weight in weights.items()}, sft_adapter / "adapter_model.safetensors")
    assert not torch.equal(references(build(config))[1][0], before[0])


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("damage", [b"", b"not an array", "one row", "nan"])
def test_a_damaged_file_is_computed_anew(damage: bytes | str, tiny_model: Path, tmp_path: Path) -> None:
    config = write_run(tmp_path, tiny_model)
    before = references(build(config))[1]
    for path in kept():
        if isinstance(damage, bytes):
            path.write_bytes(damage)
        else:
            np.save(path, np.zeros((2, 1), np.float32) if damage == "one row" else np.full((2, 4), np.nan, np.float32))
    assert [part.tolist() for part in references(build(config))[1]] == [part.tolist() for part in before]
    assert [np.load(path).shape for path in kept()] == [(2, 4)]


@pytest.mark.parametrize("begin", [lambda config: train(config, "run"), lambda config: show_plan(config, "run")])
def test_a_separate_model_of_another_tokenizer_is_refused_before_weights_are_loaded(
    begin: Callable[[DPOConfig], Any], own_model: Path, tiny_model: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(own_model)
    tokenizer.add_tokens(["<another>"])
    tokenizer.save_pretrained(own_model)
    (own_model / "model.safetensors").unlink()
    config = write_run(tmp_path, tiny_model, reference={"type": "model", "name": str(own_model)})
    with pytest.raises(ModelError, match=r"reference\.name: .* has a different vocabulary from .*choose a model with"):
        begin(load_config(config, DPOConfig))


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ({"name": "./nowhere"}, r"^reference\.name: there is no folder .*nowhere$"),
        ({"name": "a/b/c"}, r"^reference\.name: 'a/b/c' is neither a folder"),
        ({"name": "{model}", "adapter": "nowhere"}, r"^reference\.adapter: .*nowhere has no adapter_config"),
    ],
)
def test_a_separate_model_that_is_not_there_is_told_by_its_own_key(
    reference: dict[str, str], told: str, tiny_model: Path, tmp_path: Path
) -> None:
    named = {key: value.format(model=tiny_model) for key, value in reference.items()}
    config = load_config(write_run(tmp_path, tiny_model, reference={"type": "model", **named}), DPOConfig)
    with pytest.raises(ModelError, match=told):
        show_plan(config, "run")


def test_a_separate_model_that_cannot_be_loaded_is_told_by_its_own_key(
    own_model: Path, tiny_model: Path, tmp_path: Path
) -> None:
    (own_model / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"^reference\.name: cannot load "):
        build(write_run(tmp_path, tiny_model, reference={"type": "model", "name": str(own_model)}))


@pytest.mark.parametrize("reference", ["cached", "live"])
def test_a_model_without_training_is_its_own_reference_also_where_it_and_its_adapter_have_dropout(
    reference: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "gpt2", ignore=shutil.ignore_patterns("*.safetensors")))
    torch.manual_seed(0)
    # GPT-2's layers have dropout 0.1 by default; the adapter has 0.5, as SFT may have left it.
    shape: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
    GPT2LMHeadModel(GPT2Config(vocab_size=384, eos_token_id=2, bos_token_id=None, **shape)).save_pretrained(model)
    lora = {"r": 4, "target_modules": ["c_attn"]}
    (tmp_path / "sft").mkdir()
    first = build(write_run(tmp_path / "sft", model, lora=lora, method={"type": "simpo"}))
    first.loaded.model.peft_config["default"].lora_dropout = 0.5
    first.loaded.model.save_pretrained(tmp_path / "sft" / "adapter")
    section = {"name": str(model), "adapter": str(tmp_path / "sft" / "adapter"), "dtype": "float32"}
    training = {**TRAINING, "learning_rate": 1e-12}
    config = write_run(tmp_path, model, model=section, lora=..., reference={"type": reference}, training=training)
    built = build(config)
    built.train()
    for row in training_rows(metrics(built.run.path)):
        assert row["loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_dropout_of_attention_is_turned_off_where_it_is_a_number_beside_the_layers(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.9)
    ids = torch.arange(3, 40)[None]
    model.train()
    with torch.no_grad():
        assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
        without_dropout(model)
        assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


def test_an_adapter_that_starts_from_the_base_leaves_it_as_the_reference(tiny_model: Path, tmp_path: Path) -> None:
    found = []
    for name, lora in (("plain", {"r": 4}), ("started", {"r": 4, "init": "pissa"})):
        built = build(write_run(tmp_path, tiny_model, name, lora=lora, reference={"type": "live"}), folder=name)
        built.train()
        found.append(references(built)[0])
    assert torch.equal(*found)
