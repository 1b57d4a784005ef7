"""Our losses match those of TRL's trainers at each step when both train the same tiny model on the same pairs.

TRL's trainers are subclassed only to skip tokenisation, so both sides get the same ids.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trl import DPOConfig as TrlDPOConfig
from trl import DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from dpo.dpo_runs import TRAINING, Built, build, training_rows, write_run
from posttrain.config.load import load_config
from posttrain.conversation.masks import TokenRow
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import PreferenceData
from running import metrics
from token_rows import from_rows
from trl_arguments import trl_arguments

# One pair at a time: TRL averages the likelihood over all tokens of a batch, we average it per answer.
ONE_BY_ONE = {**TRAINING, "rows_per_step": 1, "micro_batch_size": 1}


class IdsDPOTrainer(DPOTrainer):
    def _prepare_dataset(self, dataset: Any, *arguments: Any, **keywords: Any) -> Any:
        return dataset


class IdsKTOTrainer(KTOTrainer):
    def _prepare_dataset(self, dataset: Any, *arguments: Any, **keywords: Any) -> Any:
        return dataset


class IdsCPOTrainer(CPOTrainer):
    def tokenize_row(self, feature: Any, model: Any = None) -> dict[str, Any]:
        return {}


class IdsORPOTrainer(ORPOTrainer):
    def tokenize_row(self, feature: Any, model: Any = None) -> dict[str, Any]:
        return {}


def prompt_and_answer(side: TokenizedDataset, row: int) -> tuple[list[int], list[int]]:
    ids, trained = side.row(row)
    places = trained.nonzero()[0]
    return ids[: places[0]].tolist(), ids[places[0] : places[-1] + 1].tolist()


def paired_rows(built: Built, rows: list[int]) -> list[dict[str, Any]]:
    """Rows for DPOTrainer's collator."""
    dataset: Any = built.data.datasets["a"]
    made = []
    for row in rows:
        prompt, chosen = prompt_and_answer(dataset.chosen, row)
        made.append(
            {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": prompt_and_answer(dataset.rejected, row)[1]}
        )
    return made


def labelled_rows(built: Built, rows: list[int]) -> list[dict[str, Any]]:
    """Rows for KTOTrainer's collator, with the answers rotated as KTOTrainer does."""
    dataset: Any = built.data.datasets["a"]
    parts = [prompt_and_answer(dataset.completions, row) for row in rows]
    return [
        {
            "prompt_ids": prompt,
            "completion_ids": answer,
            "KL_completion_ids": parts[place - 1][1],
            "label": bool(dataset.desirable[row]),
        }
        for place, (row, (prompt, answer)) in enumerate(zip(rows, parts, strict=True))
    ]


def padded_rows(built: Built, rows: list[int]) -> list[dict[str, Any]]:
    """Rows for the collator of CPOTrainer and ORPOTrainer."""
    made = []
    for each in paired_rows(built, rows):
        row: dict[str, Any] = {"prompt": "", "chosen": "", "rejected": ""}
        for side in ("chosen", "rejected"):
            prompt, answer = each["prompt_ids"], each[f"{side}_ids"]
            row[f"{side}_input_ids"] = prompt + answer
            row[f"{side}_attention_mask"] = [1] * len(prompt + answer)
            row[f"{side}_labels"] = [-100] * len(prompt) + answer
        made.append(row)
    return made


Rows = Callable[[Built, list[int]], list[dict[str, Any]]]


def ours_and_trls(
    path: Path, trainer: Any, config: Any, rows: Rows, change: Any = None, **fields: Any
) -> tuple[Built, Any]:
    """Train both for three steps, TRL's on the rows of each of our steps."""
    built = build(path, change=change)
    built.train()

    again = build(path, folder="again", change=change)  # same starting weights; its own trainer is not used
    plans = [built.recipe.steps.plan(step) for step in range(3)]
    # In data order: that is how KTO's mismatched answers are rotated.
    wanted = [row for plan in plans for row in sorted(draw.row for draw in plan.draws)]
    settings = load_config(path, DPOConfig)
    arguments = trl_arguments(settings.training, path.parent / "trl", 3)
    theirs = trainer(
        model=again.loaded.model,
        args=config(**arguments, max_length=None, **fields),
        processing_class=again.loaded.tokenizer,
        train_dataset=Dataset.from_list(rows(built, wanted)),
    )
    theirs.train()
    return built, theirs


def compared(built: Built, theirs: Any) -> tuple[list[float], list[float]]:
    ours = [row["loss"] for row in training_rows(metrics(built.run.path))]
    trls = [row["loss"] for row in theirs.state.log_history if "loss" in row]
    assert len(ours) == len(trls) == 3
    return ours, trls


PAIRED = {
    "dpo": ({"type": "dpo", "beta": 0.2}, {"loss_type": "sigmoid", "beta": 0.2}),
    "ipo": ({"type": "ipo", "beta": 0.3}, {"loss_type": "ipo", "beta": 0.3}),
    "hinge": ({"type": "hinge", "beta": 0.2}, {"loss_type": "hinge", "beta": 0.2}),
    "robust": (
        {"type": "robust", "beta": 0.2, "label_smoothing": 0.2},
        {"loss_type": "robust", "beta": 0.2, "label_smoothing": 0.2},
    ),
    "exo": (
        {"type": "exo", "beta": 0.2, "label_smoothing": 0.01},
        {"loss_type": "exo_pair", "beta": 0.2, "label_smoothing": 0.01},
    ),
    "apo_zero": ({"type": "apo_zero", "beta": 0.2}, {"loss_type": "apo_zero", "beta": 0.2}),
    "apo_down": ({"type": "apo_down", "beta": 0.2}, {"loss_type": "apo_down", "beta": 0.2}),
    "mixture": (
        {
            "type": "mixture",
            "losses": [
                {"type": "dpo", "beta": 0.2, "weight": 0.7},
                {"type": "apo_zero", "beta": 0.2, "weight": 0.3},
            ],
        },
        {"loss_type": ["sigmoid", "apo_zero"], "loss_weights": [0.7, 0.3], "beta": 0.2},
    ),
}


@pytest.mark.parametrize("name", PAIRED)
def test_a_method_with_a_reference_trains_as_trls_dpo_trainer(name: str, tiny_model: Path, tmp_path: Path) -> None:
    method, fields = PAIRED[name]
    path = write_run(tmp_path, tiny_model, method=method)
    built, theirs = ours_and_trls(path, IdsDPOTrainer, TrlDPOConfig, paired_rows, **fields)
    ours, trls = compared(built, theirs)
    assert ours == pytest.approx(trls, rel=1e-4, abs=1e-5)
    assert ours[1] != pytest.approx(ours[0], abs=1e-3)  # the model has moved away from the reference

    row, log = training_rows(metrics(built.run.path))[-1], theirs.state.log_history[2]
    names = {
        "reward_accuracy": "rewards/accuracies",
        "reward_margin": "rewards/margins",
        "chosen_reward": "rewards/chosen",
        "rejected_reward": "rewards/rejected",
        "chosen_logprob": "logps/chosen",
        "rejected_logprob": "logps/rejected",
    }
    assert {key: row[key] for key in names} == pytest.approx(
        {key: log[trls] for key, trls in names.items()}, rel=1e-4, abs=1e-4
    )


def test_a_mixture_with_the_likelihood_of_the_chosen_answer_trains_as_trls(tiny_model: Path, tmp_path: Path) -> None:
    losses = [{"type": "dpo", "beta": 0.2, "weight": 0.8}, {"type": "sft", "weight": 0.5}]
    path = write_run(tmp_path, tiny_model, method={"type": "mixture", "losses": losses}, training=ONE_BY_ONE)
    fields = {"loss_type": ["sigmoid", "sft"], "loss_weights": [0.8, 0.5], "beta": 0.2}
    ours, trls = compared(*ours_and_trls(path, IdsDPOTrainer, TrlDPOConfig, paired_rows, **fields))
    assert ours == pytest.approx(trls, rel=1e-4)


def test_kto_trains_as_trls_kto_trainer(tiny_model: Path, tmp_path: Path) -> None:
    # All eight answers are one batch, so both rotate the same answers.
    method = {"type": "kto", "beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.75}
    path = write_run(
        tmp_path, tiny_model, method=method, training={**TRAINING, "rows_per_step": 8, "micro_batch_size": 8}
    )
    fields = {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.75}
    built, theirs = ours_and_trls(path, IdsKTOTrainer, KTOConfig, labelled_rows, **fields)
    ours, trls = compared(built, theirs)
    assert ours == pytest.approx(trls, rel=1e-4)
    rows, logs = training_rows(metrics(built.run.path)), theirs.state.log_history
    assert [row["divergence"] for row in rows] == pytest.approx([log["kl"] for log in logs[:3]], rel=1e-3, abs=1e-4)
    assert rows[-1]["divergence"] > 0
    for ours_name, trls_name in (("chosen_reward", "rewards/chosen"), ("rejected_logprob", "logps/rejected")):
        assert rows[-1][ours_name] == pytest.approx(logs[2][trls_name], rel=1e-4)


@pytest.mark.parametrize(
    ("method", "fields", "training"),
    [
        (
            {"type": "simpo", "beta": 2.0, "gamma": 0.6},
            {"loss_type": "simpo", "simpo_gamma": 0.6, "cpo_alpha": 0.0},
            TRAINING,
        ),
        ({"type": "cpo", "beta": 0.1, "alpha": 0.0}, {"loss_type": "sigmoid", "cpo_alpha": 0.0}, TRAINING),
        ({"type": "cpo", "beta": 0.1, "alpha": 0.5}, {"loss_type": "sigmoid", "cpo_alpha": 0.5}, ONE_BY_ONE),
    ],
)
def test_simpo_and_cpo_train_as_trls_cpo_trainer(
    method: dict[str, Any], fields: dict[str, Any], training: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    path = write_run(tmp_path, tiny_model, method=method, training=training)
    built, theirs = ours_and_trls(path, IdsCPOTrainer, CPOConfig, padded_rows, beta=method["beta"], **fields)
    ours, trls = compared(built, theirs)
    assert ours == pytest.approx(trls, rel=1e-4)


def of_one_token(data: PreferenceData) -> PreferenceData:
    """The same answers, with each prompt reduced to its last token."""
    dataset: Any = data.datasets["a"]

    def shortened(side: TokenizedDataset) -> TokenizedDataset:
        rows = []
        for ids, trained in map(side.row, range(len(side))):
            start = trained.nonzero()[0][0] - 1
            rows.append(TokenRow(ids[start:].tolist(), trained[start:].tolist()))
        described = list(zip(side.lines.tolist(), side.weights.tolist(), side.contents.tolist(), strict=True))
        return from_rows("a", rows, described, side.ledger, side.digest)

    short = replace(dataset, chosen=shortened(dataset.chosen), rejected=shortened(dataset.rejected))
    return replace(data, datasets={"a": short})


def test_orpo_trains_as_trls_orpo_trainer(tiny_model: Path, tmp_path: Path) -> None:
    # TRL's likelihood includes the prompt, but in a one-token prompt nothing is predicted.
    path = write_run(tmp_path, tiny_model, method={"type": "orpo", "beta": 0.5}, training=ONE_BY_ONE)
    ours, trls = compared(*ours_and_trls(path, IdsORPOTrainer, ORPOConfig, padded_rows, change=of_one_token, beta=0.5))
    assert ours == pytest.approx(trls, rel=1e-4)


def test_orpo_has_trls_loss_but_for_the_likelihood_of_the_prompt(tiny_model: Path, tmp_path: Path) -> None:
    path = write_run(tmp_path, tiny_model, method={"type": "orpo", "beta": 0.5}, training=ONE_BY_ONE)
    built, theirs = ours_and_trls(path, IdsORPOTrainer, ORPOConfig, padded_rows, beta=0.5)
    ours, trls = compared(built, theirs)
    # At the first step both models are the same. TRL's mean likelihood includes the prompt's tokens.
    log = theirs.state.log_history[0]
    chosen = built.data.datasets["a"].chosen
    row = built.recipe.steps.plan(0).draws[0].row
    prompt, _ = prompt_and_answer(chosen, row)
    assert len(prompt) > 1
    of_answer = -log["logps/chosen"]  # a mean per token in TRL's ORPO
    assert ours[0] == pytest.approx(trls[0] - log["nll_loss"] + of_answer, rel=1e-5)
    assert ours[0] == pytest.approx(of_answer - 0.5 * log["log_odds_ratio"], rel=1e-5)
