"""Checks that look at more than one section of a config, for all trainers."""

from collections.abc import Collection, Iterable

from pydantic import ValidationInfo

from posttrain.config.sections.run import RunConfig


def require_best_is_measured(run: RunConfig, info: ValidationInfo, section: str) -> RunConfig:
    """The run section as it is; ValueError where it exports the best weights and `section`, by which they would be
    told, is not there."""
    if run.export == "best" and section in info.data and info.data[section] is None:
        article = "an" if section[0] in "aeiou" else "a"
        raise ValueError(f"export: best needs {article} {section} section to tell which is best")
    return run


def require_all_used(datasets: Iterable[str], used: Collection[str]) -> None:
    """Raise ValueError where no stage mixes one of the data sets; `used` are those that some stage does."""
    unused = [name for name in datasets if name not in used]
    if unused:
        raise ValueError(f"no stage uses {', '.join(unused)}; add it to a stage's mix or remove it from datasets")
