"""Settings of rollouts that contradict each other are refused with the reason."""

from typing import Any

import pytest
from pydantic import ValidationError

from posttrain.rl.rollout.config import RolloutConfig

SPREAD = {"kind": "reward_spread"}
SHORT = {"kind": "length", "min_tokens": 41}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"staleness": 1, "placement": "process"}, "placement: child or auto"),
    ({"staleness": 1, "engine": "vllm", "sleep": True}, "sleep: false"),
    ({"staleness": -1}, "staleness"),
    ({"segment_tokens": 256}, "no completion is longer than max_new_tokens: 256"),
    ({"segment_tokens": 64, "max_new_tokens": {0: 32, 100: 64}}, "max_new_tokens: 64"),
    ({"segment_tokens": 64, "stop": ["END"]}, "border of two segments"),
    ({"segment_tokens": 64, "filters": [SPREAD], "rejected": "substitute"}, "keep or drop"),
    ({"segment_tokens": 64, "top_p": 0.9}, "importance_correction: token_mask"),
    ({"staleness": 2, "max_age": 1}, "tokens can be 2 optimizer steps old"),
    ({"segment_tokens": 100, "max_age": 1}, "tokens can be 2 optimizer steps old"),
    ({"staleness": 1, "segment_tokens": 100, "steps_per_generation": 2, "max_age": 6}, "7 optimizer steps old"),
    ({"iterations": 2, "max_age": 0}, "1 optimizer steps old"),
    ({"importance_limit": 2}, "importance_limit: has no effect with importance_correction: none .auto"),
    ({"importance_floor": 0.5, "importance_correction": "none", "staleness": 1}, "importance_floor: has no effect"),
    ({"importance_limit": 2, "importance_ratio": "behaviour"}, "no effect with importance_ratio: behaviour"),
    ({"filters": [{"kind": "diversity", "min_distinct": 9}]}, "min_distinct: 9 is above generations: 8"),
    ({"filters": [SHORT], "max_new_tokens": {0: 8, 5: 40}}, r"filters\.0: min_tokens: 41 is above max_new_tokens: 40"),
    (
        {"filters": [{"kind": "any_of", "filters": [SPREAD, SHORT]}], "max_new_tokens": 40},
        r"filters\.0: filters\.1: min",
    ),
]

ACCEPTED: list[dict[str, Any]] = [
    {"importance_limit": 2, "staleness": 1},
    {"importance_floor": 0.5, "engine": "vllm"},
    {"filters": [{"kind": "diversity", "min_distinct": 8}]},
    {"filters": [SHORT], "max_new_tokens": {0: 8, 5: 41}},
    {"filters": [{"kind": "not", "filter": SHORT}], "max_new_tokens": 40},
]


@pytest.mark.parametrize("keys", ACCEPTED, ids=str)
def test_what_has_an_effect_is_accepted(keys: dict[str, Any]) -> None:
    RolloutConfig.model_validate(keys)


@pytest.mark.parametrize(("keys", "why"), REFUSED, ids=[str(keys) for keys, _ in REFUSED])
def test_contradictions_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        RolloutConfig.model_validate(keys)


@pytest.mark.parametrize(
    ("keys", "oldest"),
    [
        ({}, 0),
        ({"staleness": 1}, 1),
        ({"steps_per_generation": 2, "iterations": 2}, 3),
        ({"staleness": 1, "iterations": 2}, 3),
        ({"segment_tokens": 128}, 1),
        ({"segment_tokens": 100}, 2),
        ({"staleness": 1, "segment_tokens": 100, "steps_per_generation": 2}, 7),
    ],
)
def test_how_old_a_token_can_become_is_known_in_advance(keys: dict[str, Any], oldest: int) -> None:
    assert RolloutConfig.model_validate({**keys, "max_age": oldest}).oldest == oldest
