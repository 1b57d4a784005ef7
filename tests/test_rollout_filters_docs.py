"""The configs on the page about filters are valid, and its filter works."""

from pathlib import Path

import pytest
import yaml

from posttrain.rl.config import RolloutConfig
from posttrain.rl.rollout.filters.catalogue import check_user_filters, rejection
from rl.written_rollouts import a_prompt, a_rollout
from test_dataserver_docs import blocks

PAGE = (Path(__file__).parent.parent / "docs" / "rollout-filters.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", blocks(PAGE, "yaml"))
def test_each_config_is_valid_with_filters(block: str) -> None:
    (section,) = yaml.safe_load(block).values()
    RolloutConfig.model_validate(section)


def test_the_page_s_own_filter_rejects_short_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks(PAGE, "python")
    (tmp_path / "my_filters.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    (section,) = (yaml.safe_load(block)["rollout"] for block in blocks(PAGE, "yaml") if "my_filters" in block)
    filters = RolloutConfig.model_validate(section).filters
    check_user_filters(filters)
    prompt = a_prompt(0)
    long, short = a_rollout(prompt, 0, range(20), 0.5), a_rollout(prompt, 1, range(19), 1.0)
    assert rejection(filters, [long], 0) is None
    found = rejection(filters, [long, short], 0)
    assert found is not None
    assert (found.name, found.reason) == ("too_short", "the best completion is very short")
