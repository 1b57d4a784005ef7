"""Data of an SFT run: tokenised data sets, validation split, and curriculum."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posttrain.config.sections.datasets import AnyTrainingData, TextsConfig
from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.ledger import Ledger
from posttrain.data.preparation import VALIDATION, prepare_dataset, prepare_each
from posttrain.data.splits import split_each
from posttrain.data.text_rows import prepare_texts
from posttrain.data.tokenized import TokenizedDataset, concatenate
from posttrain.models.tokens import training_template
from posttrain.sft.config import SFTConfig


@dataclass(frozen=True)
class SFTData:
    """Training data, validation data, curriculum, the optimizer step at which training ends, and all ledgers."""

    datasets: dict[str, TokenizedDataset]
    validation: TokenizedDataset | None
    curriculum: Curriculum
    max_steps: int
    ledgers: list[Ledger]


def prepare_data(config: SFTConfig, tokenizer: Any, report: Callable[[str], None]) -> SFTData:
    """Read, tokenise and split everything that the config names.

    Raises:
        DataError: a file or record is bad, or too little is left of a data set.
        ConfigError: the stages do not fit the data.
    """
    sources = dict(config.datasets)
    if config.validation is not None and config.validation.dataset is not None:
        sources[VALIDATION] = config.validation.dataset

    template = training_template(config.chat, tokenizer)

    def prepare(name: str, source: AnyTrainingData) -> TokenizedDataset:
        if isinstance(source, TextsConfig):
            return prepare_texts(name, source, config.chat, tokenizer, config.on_bad_record, report)
        return prepare_dataset(name, source, config.chat, tokenizer, config.on_bad_record, report, template)

    prepared = prepare_each(sources, prepare)
    ledgers = [dataset.ledger for dataset in prepared.values()]
    datasets = {name: prepared[name] for name in config.datasets}
    validation = prepared.get(VALIDATION)
    if config.validation is not None and config.validation.fraction is not None:
        datasets, held_out = split_each(datasets, config.validation.fraction, config.training.seed)
        validation = concatenate(held_out, "validation")
    sizes = {name: len(dataset) for name, dataset in datasets.items()}
    training = config.training
    curriculum = Curriculum(config.curriculum_stages(sizes), sizes, training.rows_per_step, training.seed)
    return SFTData(datasets, validation, curriculum, config.steps_of(curriculum), ledgers)
