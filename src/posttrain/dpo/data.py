"""The data of a preference run: prepared data sets, the validation rows split off, and the curriculum over the rest."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.ledger import Ledger
from posttrain.data.preparation import VALIDATION, prepare_each
from posttrain.data.splits import split_each
from posttrain.dpo.config.data import AnyPreferences
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.datasets import LabelledDataset, PreferenceDataset, concatenate
from posttrain.dpo.prepare import Policies, prepare_preferences
from posttrain.errors import DataError
from posttrain.models.training_template import training_template


@dataclass(frozen=True)
class PreferenceData:
    """What is trained, what is held out, in which order and for how long, and the ledgers of all data sets.

    All data sets are of one kind: pairs, or for kto labelled answers. `max_steps` is the optimizer step at which
    training ends, which with `epochs` is known only now that the data are counted.
    """

    datasets: dict[str, PreferenceDataset]
    validation: PreferenceDataset | None
    curriculum: Curriculum
    max_steps: int
    ledgers: list[Ledger]


def prepare_data(config: DPOConfig, tokenizer: Any, report: Callable[[str], None]) -> PreferenceData:
    """Read, tokenise and split everything that the config names.

    Raises:
        DataError: a file or record is bad, or too little is left of a data set.
        ConfigError: the stages or the schedule do not fit the data.
    """
    sources = dict(config.datasets)
    if config.validation is not None and config.validation.dataset is not None:
        sources[VALIDATION] = config.validation.dataset
    policies = Policies(
        config.chat,
        config.on_bad_record,
        config.on_useless_pair,
        config.training.seed,
        config.max_dropped_share,
        training_template(config.chat, tokenizer),
    )

    def prepare(name: str, source: AnyPreferences) -> PreferenceDataset:
        return prepare_preferences(name, source, policies, tokenizer, report)

    prepared = prepare_each(sources, prepare)
    ledgers = [dataset.ledger for dataset in prepared.values()]
    if config.method.unpaired:
        labelled = {name: _as_labelled(dataset) for name, dataset in prepared.items()}
        _require_both_labels([labelled[name] for name in config.datasets])
        prepared = dict[str, PreferenceDataset](labelled)
    datasets = {name: prepared[name] for name in config.datasets}
    validation = prepared.get(VALIDATION)
    if config.validation is not None and config.validation.fraction is not None:
        datasets, held_out = split_each(datasets, config.validation.fraction, config.training.seed)
        validation = concatenate(held_out, "validation")
    sizes = {name: len(dataset) for name, dataset in datasets.items()}
    training = config.training
    curriculum = Curriculum(config.curriculum_stages(sizes), sizes, training.rows_per_step, training.seed)
    return PreferenceData(datasets, validation, curriculum, config.steps_of(curriculum), ledgers)


def _as_labelled(dataset: PreferenceDataset) -> LabelledDataset:
    return dataset if isinstance(dataset, LabelledDataset) else LabelledDataset.from_pairs(dataset)


def _require_both_labels(datasets: list[LabelledDataset]) -> None:
    """Refuse data in which every answer is good, or every one bad: the label column is misread, or one side missing."""
    labels = {bool(label) for dataset in datasets for label in np.unique(dataset.desirable)}
    if len(labels) == 1:
        raise DataError(
            f"every answer in datasets is labelled {str(labels.pop()).lower()}; kto learns from good and bad ones, so "
            "look at columns.label, or add the other kind"
        )
