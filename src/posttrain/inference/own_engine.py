"""Generate with a user's own engine: a class in a Python file of theirs, whose answers are checked."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.base.user_code import error_in_words, import_file, split_place
from posttrain.errors import ConfigError, RunError, ToolkitError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling

_METHODS = ("load", "complete", "score", "close")


def own_engine_class(place: str) -> type[Any]:
    """The class at `place` (`file.py:Class`).

    Raises:
        ConfigError: there is no such class, or it lacks a method.
    """
    file, name = split_place(place)
    kind = getattr(import_file(Path(file)), name, None)
    if not isinstance(kind, type):
        raise ConfigError(f"{file} has no class {name}")
    if lacking := [method for method in _METHODS if not callable(getattr(kind, method, None))]:
        raise ConfigError(f"{place} is no engine: it lacks {', '.join(lacking)}")
    return kind


class OwnEngine:
    """A RolloutEngine that calls a user's; what it raises or answers wrongly is a RunError that names the class."""

    def __init__(
        self, place: str, model: str, end_ids: frozenset[int], options: Mapping[str, Any] | None = None
    ) -> None:
        """Create the user's engine, which is called with the model, the end ids and the options.

        Args:
            place: `file.py:Class`.
            model: folder of the model.
            end_ids: tokens that end a completion.
            options: keyword arguments of the class, from the config.

        Raises:
            ConfigError: as `own_engine_class`; or it cannot be created.
        """
        kind = own_engine_class(place)
        self._place = place
        try:
            self._engine = kind(model, end_ids, **(options or {}))
        except Exception as error:  # whatever the user's code raises
            raise ConfigError(f"{place} cannot be created: {error_in_words(error)}") from error

    def load(self, weights: Path | None, version: int) -> None:
        """Take over the weights in a folder; RunError if that fails."""
        self._asked("load", weights, version)

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of all requests, made together; RunError if one is missing or cannot be one."""
        finished = finished or FinishedCompletions()
        wanted = {(place, number) for place, request in enumerate(requests) for number in range(request.n)}
        if (done := finished.of(requests)).keys() == wanted:
            return done
        found = self._asked("complete", requests, sampling)
        if not isinstance(found, dict) or found.keys() != wanted:
            raise RunError(f"{self._place}: complete must return a dict from each (request, number) to a Completion")
        for key, made in found.items():
            self._require_completion(key, made, sampling)
        return finished.extend(requests, found.items())

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats; RunError if there is not one number for each."""
        found = self._asked("score", ids)
        if not isinstance(found, list) or len(found) != len(ids) - 1 or not all(map(_is_logprob, found)):
            raise RunError(f"{self._place}: score must return a list with log p of all {len(ids)} tokens but the first")
        return found

    def close(self) -> None:
        """Close the user's engine."""
        self._asked("close")

    def _asked(self, method: str, *inputs: Any) -> Any:
        try:
            return getattr(self._engine, method)(*inputs)
        except ToolkitError:
            raise
        except Exception as error:
            raise RunError(f"{self._place}: {method} failed: {error_in_words(error)}") from error

    def _require_completion(self, key: Key, made: Any, sampling: Sampling) -> None:
        is_one = isinstance(made, Completion) and 0 < len(made.token_ids) <= sampling.max_new_tokens
        if not is_one:
            raise RunError(f"{self._place}: {key} is no Completion of 1 to {sampling.max_new_tokens} tokens")
        logprobs = made.logprobs if made.logprobs is not None else ()
        if sampling.logprobs and (len(logprobs) != len(made.token_ids) or not all(map(_is_logprob, logprobs))):
            raise RunError(f"{self._place}: {key} has not one finite log-probability, at most 0, for each token")


def _is_logprob(value: Any) -> bool:
    # Rounding can make a certainty a little more than 1.
    return isinstance(value, int | float) and math.isfinite(value) and value <= 1e-3
