"""The report: the page and its JSON have the same numbers, and any text stays text."""

import shlex
import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml
from playwright.sync_api import Browser
from typer.testing import Result

from chromium import open_browser
from pipeline.pipeline_cases import Case
from posttrain.evaluate.results import Results
from running import BIN

HOSTILE = "<img src=x onerror=hacked=1>"


@pytest.fixture(scope="module")
def browser(trained: Case) -> Iterator[Browser]:
    """Chromium, opened once the pipeline has run: no other event loop can run while it is open."""
    with open_browser() as browser:
        yield browser


def test_the_page_has_the_numbers_of_the_json_and_loads_nothing(trained: Case, browser: Browser) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((trained.output / "report.html").as_uri(), wait_until="load")
    report = trained.report()
    assert [url for url in asked if not url.startswith("data:")] == [(trained.output / "report.html").as_uri()]
    assert page.get_by_text(report["decisions"]["choice"]["sentence"]).count() == 1
    table = page.locator("table").first
    rows = [row.locator("td").all_text_contents() for row in table.locator("tbody tr").all()]
    assert [row[0] for row in rows] == [each["step"] for each in report["steps"]]
    by_step = {row[0]: row for row in rows}
    for each in report["steps"]:
        if each["numbers"]:
            assert by_step[each["step"]][4:6] == [f"{each['numbers']['steps']:,}", f"{each['numbers']['tokens']:,}"]
    assert page.locator("img").count() >= 3  # curves of three kinds of training
    page.close()


def test_the_report_says_which_weights_went_where(trained: Case) -> None:
    steps = {each["step"]: each for each in trained.report()["steps"]}
    assert steps["dpo"]["starts_from"] == [{"step": "sft", "as": "adapter"}]
    assert steps["dpo.merged"]["starts_from"] == [{"step": "dpo", "as": "adapter"}]
    assert steps["grpo"]["starts_from"] == [{"step": "dpo.merged", "as": "all weights"}]
    assert [each["step"] for each in steps["scores"]["starts_from"]] == ["base", "sft", "dpo", "grpo"]


def test_the_command_that_talks_to_the_winner_does(trained: Case, browser: Browser) -> None:
    winner = trained.report()["decisions"]["choice"]["winner"]
    page = browser.new_page()
    page.goto((trained.output / "report.html").as_uri(), wait_until="load")
    words = page.locator("details", has_text=f"talk to {winner}").locator("pre").text_content()
    page.close()
    command = shlex.split(words or "")
    command[0] = str(BIN / command[0])
    asked = [*command, "--set", "generation.max_new_tokens=4"]
    talked = subprocess.run(asked, input="Hello?\n", text=True, capture_output=True, check=False)
    assert talked.returncode == 0, talked.stderr
    assert len(talked.stdout) > 1  # a tiny model may answer with blanks


def test_results_are_read_back_as_they_were_written(trained: Case) -> None:
    results = Results.read(trained.folder_of("scores") / "results.json")
    assert list(results.models) == ["base", "sft", "dpo", "grpo"]
    assert results.as_json() == trained.report()["evaluations"]["scores"]


def test_hostile_names_and_errors_stay_text(commands: Case, run: Callable[..., Result], browser: Browser) -> None:
    config = yaml.safe_load(commands.config.read_text())
    config["steps"][HOSTILE] = {"run": "command", "argv": ["false"], "outputs": [HOSTILE]}
    commands.config.write_text(yaml.safe_dump(config))
    run(commands, expect=1)
    page = browser.new_page()
    page.goto((commands.output / "report.html").as_uri(), wait_until="load")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.get_by_text(HOSTILE).count() > 0
    page.close()
