"""Keys of replay and successes that do not fit each other are refused with their reason."""

from typing import Any

import pytest
from pydantic import ValidationError

from posttrain.rl.config import RLConfig, RolloutConfig

FILTERS = [{"kind": "reward_spread"}]
RESERVED = {"share": 0.5, "fill": "reserved"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"replay": {"share": 0}}, "never replays"),
        ({"replay": {"share": {"0": 0, "9": 0}}}, "never replays"),
        ({"replay": {"share": 1.5}}, "less than or equal to 1"),
        ({"replay": {"share": {"0": 0, "9": 1.5}}}, "less than or equal to 1"),
        ({"replay": {"share": {"0": -0.5, "9": 1}}}, "greater than or equal to 0"),
        ({"replay": {**RESERVED, "share": 1}}, "leaves nothing to generate"),
        ({"replay": {"share": 0.5}}, "give filters"),
        ({"replay": {"share": 0.5}, "filters": FILTERS}, "give filters"),
        ({"replay": RESERVED, "importance_correction": "none"}, "importance_correction: none, but replay trains"),
        ({"replay": RESERVED, "importance_ratio": "behaviour"}, "importance_ratio: behaviour, but replay trains"),
        ({"replay": RESERVED, "record": True}, "record: true, but replay: fill: reserved generates nothing"),
        ({"replay": RESERVED, "top_p": 0.9}, "token_mask compares the model's own probabilities"),
        ({"successes": {"share": 0.5}, "importance_correction": "none"}, "successes trains"),
        ({"successes": {"share": 0}}, "greater than 0"),
        ({"successes": {"share": 1, "threshold": 0}}, "greater than 0"),  # every group would have a solution
        ({"successes": {"share": 1, "threshold": 1.01}}, "less than or equal to 1"),  # the highest reward is 1
        ({"successes": {}}, "required"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        RolloutConfig.model_validate(keys)


@pytest.mark.parametrize(
    ("keys", "least"),
    [
        # By hand, for k generations ahead that serve m steps each: generation n has the weights after (n − k)·m steps
        # and is stored by step n·m. Generation n + k + 1 is the first one begun later, by step (n + 1)·m; it is trained
        # until step (n + k + 2)·m − 1.
        ({}, 1),
        ({"staleness": 1}, 3),
        ({"staleness": 2}, 5),
        ({"steps_per_generation": 2}, 3),
        ({"steps_per_generation": 2, "iterations": 2, "staleness": 1}, 15),
    ],
)
def test_an_age_that_no_stored_group_can_meet_is_refused_with_the_smallest_one_that_works(
    keys: dict[str, Any], least: int
) -> None:
    RolloutConfig.model_validate({**keys, "replay": {**RESERVED, "max_age": least}})
    if least > 1:
        with pytest.raises(ValidationError, match=rf"replay: max_age: {least - 1} .*set it to {least} or more"):
            RolloutConfig.model_validate({**keys, "replay": {**RESERVED, "max_age": least - 1}})


def test_a_solution_s_age_must_reach_the_next_generation() -> None:
    keys = {"staleness": 1, "steps_per_generation": 2}
    RolloutConfig.model_validate({**keys, "successes": {"share": 1, "max_age": 5}})
    with pytest.raises(ValidationError, match=r"successes: max_age: 4 .*set it to 5"):
        RolloutConfig.model_validate({**keys, "successes": {"share": 1, "max_age": 4}})


def test_replayed_tokens_are_corrected_one_by_one() -> None:
    replay = {"replay": {"share": 0.5}, "filters": FILTERS, "rejected": "drop"}
    found = RolloutConfig.model_validate(replay).correction
    assert (found.kind, found.floor, found.limit) == ("token_mask", 0.5, 2.0)
    assert RolloutConfig.model_validate({"successes": {"share": 1}, "engine": "vllm"}).correction == found
    chosen = {**replay, "importance_correction": "sequence_truncate", "importance_limit": 4}
    assert RolloutConfig.model_validate(chosen).correction.kind == "sequence_truncate"
    assert RolloutConfig().correction.kind == "none"


@pytest.mark.parametrize("algorithm", ["gspo", "rloo"])
@pytest.mark.parametrize(
    "section", [{"replay": RESERVED}, {"successes": {"share": 1}}, {"staleness": 1}, {"segment_tokens": 64}]
)
def test_one_ratio_per_completion_needs_one_correction_per_completion(algorithm: str, section: dict[str, Any]) -> None:
    config = {"model": {"name": "m"}, "dataserver": {"url": "http://a"}, "algorithm": algorithm}
    with pytest.raises(ValidationError, match=f"{algorithm} takes one ratio per completion"):
        RLConfig.model_validate({**config, "rollout": section})
    RLConfig.model_validate({**config, "rollout": {**section, "importance_correction": "sequence_truncate"}})
