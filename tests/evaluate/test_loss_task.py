"""Task `loss`: numbers worked out by hand, and the validation loss that training measures on the same file."""

import json
from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest
import yaml
from eval_cases import ANSWERS, Case
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from forked_command import run_forked
from posttrain.evaluate.tasks.loss import shares_of_loss
from running import metrics


def test_the_values_of_rows_are_worked_out_by_hand():
    # L = (1 + 5) / (1 + 3) = 1.5, and the mean of the tokens is 2: 1.5 + (1 - 1.5 · 1) / 2 and 1.5 + (5 - 1.5 · 3) / 2.
    assert shares_of_loss([1.0, 5.0], [1.0, 3.0]) == [1.25, 1.75]
    # Rows of one length have their own mean loss per token.
    assert shares_of_loss([2.0, 6.0], [4.0, 4.0]) == [0.5, 1.5]


LOSS = st.tuples(st.floats(0, 1000), st.floats(0.25, 500))


@given(st.lists(LOSS, min_size=1, max_size=20))
def test_the_mean_of_the_rows_values_is_the_loss_per_token(rows: list[tuple[float, float]]):
    losses, tokens = zip(*rows, strict=True)
    assert fmean(shares_of_loss(losses, tokens)) == pytest.approx(sum(losses) / sum(tokens), rel=1e-9, abs=1e-9)


def only_loss(case: Case, **task: Any) -> None:
    case.change(tasks={"loss": {"type": "loss", "path": "answers.jsonl", **task}})


def losses(case: Case) -> dict[str, float]:
    estimates = case.results()["tasks"]["loss"]["measures"]["loss"]["estimates"]
    return {model: each["value"] for model, each in estimates.items()}


def test_it_is_the_validation_loss_of_training_before_and_after(case: Case, run: Callable):
    weighted = [{**row, "weight": 1 + number % 3} for number, row in enumerate(ANSWERS)]
    (case.folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in weighted))
    training = yaml.safe_load((case.folder / "tuned.yaml").read_text()) | {
        "datasets": {"rows": {"path": "answers.jsonl"}},
        "validation": {"dataset": {"path": "answers.jsonl"}, "every": 2},
        "stages": [{"name": "one", "until_step": 2, "mix": {"rows": 1}}],
        "training": {"rows_per_step": 4, "learning_rate": 1e-3},
        "chat": {"default_system": "Be brief."},
    }
    (case.folder / "longer.yaml").write_text(yaml.safe_dump(training))
    done = run_forked(["toolkit-sft", case.folder / "longer.yaml"])
    assert done.returncode == 0, done.stderr
    measured = [row["eval_loss"] for row in metrics(case.folder / "runs" / "longer") if "eval_loss" in row]

    only_loss(case)
    longer = {"config": "longer.yaml"}
    case.change(models={"before": {**longer, "weights": "base"}, "after": longer})
    run(case.config)
    assert list(losses(case).values()) == pytest.approx(measured, rel=1e-5)
    assert measured[1] < measured[0]
    verdict = case.results()["tasks"]["loss"]["measures"]["loss"]["comparisons"]["after"]
    assert verdict["difference"]["value"] == pytest.approx(measured[1] - measured[0], rel=1e-3)


def test_models_with_other_tokens_are_not_compared(case: Case, run: Callable):
    training = yaml.safe_load((case.folder / "tuned.yaml").read_text())
    (case.folder / "system.yaml").write_text(yaml.safe_dump({**training, "chat": {"default_system": "Be brief."}}))
    only_loss(case)
    plain, system = {"config": "tuned.yaml", "weights": "base"}, {"config": "system.yaml", "weights": "base"}
    case.change(models={"plain": plain, "system": system})
    run(case.config)
    assert losses(case).keys() == {"plain", "system"}
    assert case.results()["tasks"]["loss"]["measures"]["loss"]["comparisons"] == {}


def test_a_model_whose_log_probabilities_are_no_numbers_has_no_result(case: Case, run: Callable):
    weights = case.folder / "runs" / "tuned" / "adapter_model.safetensors"
    broken = {name: tensor.fill_(float("nan")) for name, tensor in load_file(weights).items()}
    save_file(broken, weights)
    only_loss(case)
    assert "not finite" in run(case.config, expect=1).stderr
    assert losses(case).keys() == {"base"}
    assert "NaN" not in (case.output / "results.json").read_text()
