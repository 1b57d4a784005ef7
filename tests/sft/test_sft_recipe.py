"""The loss of an optimizer step does not depend on how it is split into micro-batches and ranks."""

import json

import pytest
import torch

from in_process import sft
from posttrain.config.load import load_config
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train
from running import metrics

UNEVEN = [
    {"prompt": "Say one", "completion": "one"},
    {"prompt": "Count", "completion": "one two three four five six seven eight nine ten " * 4},
    {"prompt": "Count a little further than before " * 4, "completion": "eleven"},
    {"prompt": "And", "completion": "so on and so forth " * 2},
]


@pytest.fixture
def write_uneven(write_config, tmp_path, write_jsonl):
    """A config of three steps over four rows of very different lengths, without dropout, in float32."""

    def write(rows=UNEVEN, micro_batch_size=1, **sections):
        config = write_config(
            datasets={"a": {"path": "uneven.jsonl"}},
            stages=[{"name": "one", "until_step": 3, "mix": {"a": 1}}],
            training={
                "rows_per_step": 4,
                "micro_batch_size": micro_batch_size,
                "learning_rate": 1e-2,
                "max_grad_norm": 0,
                "schedule": "constant",
            },
            **{
                "lora": {"r": 4},
                **sections,
                "model": {"name": str(sections["model"]), "dtype": "float32"},
            },
        )
        write_jsonl(tmp_path / "uneven.jsonl", rows)
        return load_config(config, SFTConfig)

    return write


def trained_adapter(config, tmp_path, name):
    from safetensors.torch import load_file

    train(config, name)
    return load_file(tmp_path / "runs" / name / "adapter_model.safetensors")


def test_four_uneven_micro_batches_train_like_one_big_batch(write_uneven, tiny_model, tmp_path):
    small = trained_adapter(write_uneven(micro_batch_size=1, model=tiny_model), tmp_path, "small")
    big = trained_adapter(write_uneven(micro_batch_size=4, model=tiny_model), tmp_path, "big")
    for key, weight in big.items():
        torch.testing.assert_close(small[key], weight, atol=1e-5, rtol=1e-4)
    losses = [[row["loss"] for row in metrics(tmp_path / "runs" / name)] for name in ("small", "big")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_the_first_loss_is_the_mean_over_trained_tokens_computed_by_hand(write_uneven, tiny_model, tmp_path):
    config = write_uneven(model=tiny_model)
    training = sft(config, tmp_path / "run")
    data, loaded = training.data, training.loaded
    total, count = 0.0, 0
    for row in range(4):
        ids, trained = (torch.tensor(part) for part in data.datasets["a"].row(row))
        with torch.no_grad():
            log_p = loaded.model(input_ids=ids[None].long()).logits[0].log_softmax(-1)
        for position in range(len(ids) - 1):
            if trained[position + 1]:
                total -= float(log_p[position, ids[position + 1]])
                count += 1
    train(config, "by_hand")
    assert metrics(tmp_path / "runs" / "by_hand")[0]["loss"] == pytest.approx(total / count, abs=1e-5)
    assert metrics(tmp_path / "runs" / "by_hand")[0]["trained_tokens"] == count


def test_a_row_of_weight_three_trains_like_three_rows(write_uneven, tiny_model, tmp_path):
    # Three copies of a row and another one, in steps of 4; the row at weight 3 and the other one, in steps of 2: every
    # step is the same weighted mean.
    copied = write_uneven(rows=[UNEVEN[0]] * 3 + [UNEVEN[1]], model=tiny_model)
    by_copies = trained_adapter(copied, tmp_path, "copied")
    weighted = write_uneven(rows=[{**UNEVEN[0], "weight": 3.0}, UNEVEN[1]], model=tiny_model)
    training = weighted.training.model_copy(update={"rows_per_step": 2})
    by_weight = trained_adapter(weighted.model_copy(update={"training": training}), tmp_path, "weighted")
    for key, weight in by_copies.items():
        torch.testing.assert_close(by_weight[key], weight, atol=1e-5, rtol=1e-4)


def test_a_head_that_is_trained_sees_only_positions_that_are_trained(write_uneven, tiny_model, tmp_path):
    training = sft(write_uneven(micro_batch_size=2, model=tiny_model, lora=None), tmp_path / "run")
    rows: list[int] = []
    handle = training.model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: rows.append(inputs[0].shape[:-1].numel())
    )
    training.train()
    handle.remove()
    trained = sum(row["trained_tokens"] for row in metrics(tmp_path / "run"))
    computed = sum(row["tokens"] for row in metrics(tmp_path / "run"))
    assert sum(rows) == trained < computed


@pytest.mark.ranks
def test_two_ranks_train_the_same_rows_to_the_same_loss_as_one(write_config, toolkit, tmp_path):
    one, two = (write_config(name, lora={"r": 4}) for name in ("one", "two"))  # dropout draws differ by rank
    toolkit("toolkit-sft", one, "--set", "model.dtype=float32")
    toolkit("toolkit-sft", two, "--set", "model.dtype=float32", processes=2)
    alone, together = metrics(tmp_path / "runs" / "one"), metrics(tmp_path / "runs" / "two")
    assert [row["order_hash"] for row in together] == [row["order_hash"] for row in alone]
    assert [row["loss"] for row in together] == pytest.approx([row["loss"] for row in alone], abs=1e-4)
    assert json.loads((tmp_path / "runs" / "two" / "manifest.json").read_text())["identity"]["processes"] == 2
