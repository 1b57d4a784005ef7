"""docs/push.md: the options that it names are there, and what it says is repeated is."""

import re
from pathlib import Path

import httpx
import yaml
from huggingface_hub.errors import HfHubHTTPError
from typer.testing import CliRunner

from posttrain.base.http import PassingError
from posttrain.cli.push import main
from posttrain.config.sections.run import RunConfig
from posttrain.hub.answers import described_error
from posttrain.push.push import RETRY_SECONDS

PAGE = (Path(__file__).parent.parent / "docs" / "push.md").read_text(encoding="utf-8")


def test_the_options_that_the_page_names_are_there() -> None:
    shown = CliRunner().invoke(main, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for option in set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {"--resume"}:
        assert option in shown, option


def test_the_answers_that_the_page_says_are_repeated_are_and_for_that_long() -> None:
    [told] = re.findall(r"the answers ([\d, ]+ and 5xx) are repeated for two minutes", PAGE.replace("\n", " "))
    assert RETRY_SECONDS == 120
    repeated = {int(status) for status in re.findall(r"\d{3}", told)} | {500, 502, 503, 504}
    request = httpx.Request("GET", "http://hub/api")
    for status in (400, 401, 403, 404, 408, 409, 412, 413, 429, 500, 502, 503, 504):
        error = HfHubHTTPError("no", response=httpx.Response(status, request=request))
        assert isinstance(described_error(error, "owner/name", "HF_TOKEN"), PassingError) == (status in repeated), (
            status
        )


def test_the_section_of_a_config_on_the_page_is_one() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    section = yaml.safe_load(text)["run"]
    section["push"]["repo"] = section["push"]["repo"].replace("OWNER", "owner")
    run = RunConfig.model_validate(section)
    assert run.push is not None and run.push.revision_of(200) == "step-200"
    assert set(re.findall(r"`(\w+_\w+)`", PAGE)) >= {"keep_unpushed", "retry_seconds"}
