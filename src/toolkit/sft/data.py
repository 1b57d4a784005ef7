"""The data of an SFT run: tokenised data sets, the validation rows split off, and the curriculum over the rest."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.core.config.data import DatasetConfig
from toolkit.core.curriculum.curriculum import Curriculum
from toolkit.core.ledger import Ledger
from toolkit.core.preparation import prepare_dataset
from toolkit.core.splits import held_out_rows
from toolkit.core.tokenized import TokenizedDataset, concatenate
from toolkit.errors import DataError
from toolkit.sft.config import SFTConfig

# How the ledger and errors call the rows of `validation.dataset`.
_VALIDATION = "validation.dataset"


@dataclass(frozen=True)
class SFTData:
    """What is trained, what is held out, in which order, and the ledgers of both."""

    datasets: dict[str, TokenizedDataset]
    validation: TokenizedDataset | None
    curriculum: Curriculum
    ledgers: list[Ledger]


def prepare_data(config: SFTConfig, tokenizer: Any, report: Callable[[str], None]) -> SFTData:
    """Read, tokenise and split everything that the config names.

    Raises:
        DataError: a file or record is bad, or too little is left of a data set.
        ConfigError: the stages do not fit the data.
    """
    sources = dict(config.datasets)
    if config.validation is not None and config.validation.dataset is not None:
        sources[_VALIDATION] = config.validation.dataset
    prepared = _prepare_each(sources, config, tokenizer, report)
    ledgers = [dataset.ledger for dataset in prepared.values()]
    whole = {name: prepared[name] for name in config.datasets}
    datasets, validation = whole, prepared.get(_VALIDATION)
    if config.validation is not None and config.validation.fraction is not None:
        datasets, validation = _split(whole, config.validation.fraction, config.training.seed)
    sizes = {name: len(dataset) for name, dataset in datasets.items()}
    curriculum = Curriculum(config.curriculum_stages(), sizes, config.training.rows_per_step, config.training.seed)
    return SFTData(datasets, validation, curriculum, ledgers)


def _prepare_each(
    sources: dict[str, DatasetConfig], config: SFTConfig, tokenizer: Any, report: Callable[[str], None]
) -> dict[str, TokenizedDataset]:
    """Prepare all data sets, and tell the faults of all of them at once."""
    prepared: dict[str, TokenizedDataset] = {}
    faults: list[str] = []
    for name, source in sources.items():
        try:
            prepared[name] = prepare_dataset(name, source, config.chat, tokenizer, config.on_bad_record, report)
        except DataError as error:
            faults.append(str(error))
    if faults:
        raise DataError("\n".join(faults))
    return prepared


def _split(
    whole: dict[str, TokenizedDataset], fraction: float, seed: int
) -> tuple[dict[str, TokenizedDataset], TokenizedDataset]:
    training: dict[str, TokenizedDataset] = {}
    held_out: list[TokenizedDataset] = []
    for name, dataset in whole.items():
        train_rows, validation_rows = held_out_rows(dataset.contents, fraction, seed, name)
        training[name] = dataset.subset(train_rows, name)
        held_out.append(dataset.subset(validation_rows, name))
    return training, concatenate(held_out, "validation")
