"""What toolkit-eval measured of certain weights, recognised by the hash of all files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.evaluate.config import RESULTS
from posttrain.hub.card import Score


def scores_of(weights: str | None, folders: Sequence[Path]) -> tuple[Score, ...]:
    """The scores of the weights with this hash.

    Args:
        folders: outputs of toolkit-eval.

    Raises:
        ConfigError: a folder has no results, or none of these weights.
    """
    found: list[Score] = []
    for folder in folders:
        try:
            results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
            names = [name for name, digest in results["weights"].items() if digest == weights]
            scores = [score for name in names for score in _scores(name, results)]
        except OSError as error:
            raise ConfigError(f"--evaluation: {folder} has no {RESULTS} of toolkit-eval: {error.strerror}") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ConfigError(
                f"--evaluation: {folder / RESULTS} is damaged, or of an earlier version; run toolkit-eval again (what "
                "was answered is kept)"
            ) from None
        if not scores:
            measured = ", ".join(results["models"]) or "nothing"
            raise ConfigError(
                f"--evaluation: {folder} has no scores of the weights that are pushed, only of {measured}; measure "
                "them with toolkit-eval, or leave the option out"
            )
        found += scores
    return tuple(found)


def _scores(model: str, results: Mapping[str, Any]) -> Iterator[Score]:
    for task, result in results["tasks"].items():
        for measure, each in result["measures"].items():
            if (mean := each["estimates"].get(model)) is not None and mean["value"] is not None:
                compared = _compared(each["comparisons"].get(model), results["baseline"])
                counts = {"prompts": mean["prompts"], "ungraded": mean["ungraded"], "compared": compared}
                yield Score(task, measure, mean["value"], mean["low"], mean["high"], **counts)


def _compared(comparison: Mapping[str, Any] | None, baseline: str) -> str:
    if comparison is None or comparison["difference"]["value"] is None:
        return ""
    return f"{comparison['difference']['value']:+.4f} against {baseline}: {comparison['verdict']}"
