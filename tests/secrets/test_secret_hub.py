"""The hub's token goes to the hub only, even if the hub echoes it."""

from pathlib import Path

import pytest
from canaries import SECRETS, files_below, leaks, watched
from secret_services import echoing_app

from dataserver.graders.services import serving_app
from running import BIN
from sft.small_sft import write_sft_run

LONG = [pytest.param(way, marks=pytest.mark.long) for way in ("header/500", "deep/403", "garbage/200")]


@pytest.mark.parametrize("way", ["body/401", *LONG])
def test_a_model_of_a_hub_that_fails_is_told_without_the_token(tmp_path: Path, way: str) -> None:
    config = write_sft_run(tmp_path, Path("owner/name"))
    app = echoing_app()
    with serving_app(app) as url:
        environment = {
            **SECRETS,
            "HF_ENDPOINT": f"{url}/{way}",
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "hub"),
            "POSTTRAIN_TOOLKIT_CACHE": str(tmp_path / "cache"),
        }
        ended = watched([BIN / "toolkit-sft", config, "--dry-run", "--debug"], tmp_path, environment)

    assert f"Bearer {SECRETS['HF_TOKEN']}" in app.state.sent
    assert ended.code == 2, ended.text
    assert "owner/name" in ended.text and "Traceback" in ended.text
    assert leaks({**ended.places, **files_below(tmp_path)}) == []
