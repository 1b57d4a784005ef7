"""The filters in the registry, the config's schema, and the docs are the same; keys that have no effect are refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.config.schema import schema_of
from posttrain.dataserver.schemas import Meta
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig, RolloutConfig
from posttrain.rl.rollout.filters.catalogue import FILTERS, require_known_graders
from posttrain.rl.schedule import RolloutSchedule, require_fit
from rl.rl_recipes import a_meta

PAGE = (Path(__file__).parents[4] / "docs" / "rollout-filters.md").read_text(encoding="utf-8")


def test_registry_schema_and_docs_have_the_same_kinds_and_keys() -> None:
    items = schema_of(RolloutConfig)["properties"]["filters"]["items"]
    assert items["discriminator"]["mapping"].keys() == FILTERS.keys()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    documented = {kind: set(re.findall(r"`(\w+)`", keys)) for kind, keys in rows if kind in FILTERS}
    assert list(documented) == list(FILTERS)
    for kind, member in FILTERS.items():
        assert documented[kind] == member.model_fields.keys() - {"kind"}, kind


EQUAL = {"kind": "reward_spread"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"rejected": "substitute"}, "without filters"),
        ({"rejected": "drop"}, "without filters"),
        ({"over_sampling": 1.5}, "only rejected: substitute"),
        ({"over_sampling": 1.5, "filters": [EQUAL], "rejected": "drop"}, "only rejected: substitute"),
        ({"over_sampling": 2.5, "filters": [EQUAL], "rejected": "substitute"}, "less than or equal to 2"),
        ({"attempts": 5}, "less than or equal to 4"),
        ({"stop_without_signal": 0}, "greater than or equal to 1"),
        ({"filters": [{"kind": "spread"}]}, "expected tags"),
        ({"filters": [{"min_std": 1}]}, "discriminator"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        RolloutConfig.model_validate(keys)


CONFIG = """\
model: {name: smollm2-135m-instruct}
dataserver: {url: "http://127.0.0.1:9"}
rollout:
  rejected: substitute
  temperature: {"0": 1.2, "5": 0.5}
  filters:
    - kind: reward_spread
      min_std: 0.01
    - kind: all_of
      filters:
        - {kind: truncated, max_share: 0.5}
        - {kind: not, filter: {kind: length, max_tokens: 9}}
"""


def test_the_config_that_a_run_writes_is_the_same_config(tmp_path: Path) -> None:
    file = tmp_path / "rl.yaml"
    file.write_text(CONFIG)
    config = load_config(file, RLConfig)
    file.write_text(to_yaml(config))
    assert load_config(file, RLConfig) == config


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("min_std", "min_sdt", r":8: rollout\.filters\.0\.min_sdt: unknown key; did you mean min_std"),
        ("truncated", "trunc", r":11: rollout\.filters\.1\.filters\.0\.kind: .* did you mean truncated"),
        ("max_tokens: 9", "of: any", r":12: rollout\.filters\.1\.filters\.1\.filter: give min_tokens"),
    ],
)
def test_a_mistake_in_a_filter_is_told_by_its_line(tmp_path: Path, right: str, wrong: str, told: str) -> None:
    file = tmp_path / "rl.yaml"
    file.write_text(CONFIG.replace(right, wrong, 1))
    with pytest.raises(ConfigError, match=told) as failed:
        load_config(file, RLConfig)
    assert len(str(failed.value).splitlines()) == 1


def test_without_filters_nothing_is_rejected_and_everything_is_trained() -> None:
    rollout = RolloutConfig()
    assert (rollout.filters, rollout.rejected) == ((), "keep")


def of_component(name: str) -> RLConfig:
    inner = {"kind": "best_reward", "min": 1, "component": name}
    rollout = {"filters": [EQUAL, {"kind": "not", "filter": inner}], "generations": 4}
    return RLConfig.model_validate(
        {
            "model": {"name": "m"},
            "dataserver": {"url": "http://x"},
            "rollout": rollout,
            "training": {"rows_per_step": 8, "micro_batch_size": 8},
        }
    )


def test_a_component_must_be_one_of_the_dataserver_s_graders() -> None:
    schedule = RolloutSchedule.of(of_component("exact"))
    meta: Meta = a_meta(schedule, graders={"exact": "number_exact", "short": "length_soft"})
    assert require_fit(of_component("exact"), schedule, meta) == 8
    with pytest.raises(ConfigError, match=r"filters\.1\.filter\.component: exakt .*graders: exact, short"):
        require_fit(of_component("exakt"), schedule, meta)
    with pytest.raises(ConfigError, match="it has none"):
        require_known_graders(of_component("exact").rollout.filters, set())
