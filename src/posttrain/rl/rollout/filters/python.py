"""Filter `python`: a function of the user's that judges a group."""

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue

from posttrain.base.text import one_line
from posttrain.base.user_code import UserCallable, split_place
from posttrain.config.values import FunctionPlace
from posttrain.errors import RunError
from posttrain.rl.rollout.filters.base import Filter

if TYPE_CHECKING:
    from posttrain.rl.rollout.rollout import Rollout

_LONGEST_REASON = 200

EXAMPLE: list[dict[str, Any]] = [
    {
        "text": text,
        "token_ids": ids,
        "reward": reward,
        "scores": {} if reward is None else {"grader": reward},
        "truncated": reward is None,
        "prompt": "What is 1 + 1?",
        "dataset": "example",
        "iteration": 0,
    }
    for text, ids, reward in (("2", [17], 1.0), ("3.", [18, 13], 0.0), ("", [], None))
]
"""The group that a function is called on before anything is loaded."""


class PythonFilter(Filter):
    """Rejects a group if your function `f(completions, options)` returns a reason, and accepts it if that returns None.

    `completions` is a list of dicts with `text`, `token_ids`, `reward` and `scores` (each None where there is none),
    `truncated`, `prompt`, `dataset` and `iteration`. The content of the file and the options are part of the run's
    identity. An error in the function ends the run.
    """

    kind: Literal["python"]
    """Whatever a function of your own finds."""

    path: FunctionPlace
    """`file.py:function`, relative to this config file."""

    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Passed to the function as its last argument."""

    @property
    def name(self) -> str:
        """The function's name."""
        return split_place(self.path)[1]

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above; RunError if the function raises an error, or returns neither a text nor None."""
        return self.verdict_on([_plain(each, iteration) for each in group])

    def verdict_on(self, completions: list[dict[str, Any]]) -> str | None:
        """The verdict on completions as the function gets them; raises the same error."""
        function = _function(self.path)
        # Copied, so that a function that changes its options gets the same ones each time.
        reason = function(completions, copy.deepcopy(self.options))
        if reason is None:
            return None
        if not isinstance(reason, str) or not reason.strip():
            found = "an empty text" if isinstance(reason, str) else type(reason).__name__
            raise RunError(
                f"{function.where()}: {self.path} must return why the group is rejected, or None, but returned {found}"
            )
        return one_line(reason, _LONGEST_REASON)


def _plain(rollout: "Rollout", iteration: int) -> dict[str, Any]:
    components = rollout.result.components if rollout.result is not None else {}
    return {
        "text": rollout.text,
        "token_ids": rollout.ids.tolist(),
        "reward": rollout.reward,
        "scores": {name: each.score for name, each in components.items()},
        "truncated": rollout.was_cut,
        "prompt": rollout.prompt.text,
        "dataset": rollout.prompt.dataset,
        "iteration": iteration,
    }


# A module is imported once, so that what it prepares at its top is prepared once.
_function = lru_cache(UserCallable)
