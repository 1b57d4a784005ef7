"""The report in a real browser: its numbers are those of results.json, and hostile text stays text."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chat_server import chat_server
from eval_cases import Case, write_case
from playwright.sync_api import Browser, Page, Request

from chromium import open_browser

HOSTILE = "<script>window.hacked = 1</script><img src=http://127.0.0.1:9/x onerror='window.hacked=2'>\u202e</pre></td>"


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path, adapter: Path, run: Callable) -> Case:
    """Results of two models behind a server whose answers are hostile, as are prompts, golds and the models' names."""
    case = write_case(tmp_path_factory.mktemp("reported"), sharp_model, adapter)
    rows = [{"prompt": f"{number} {HOSTILE}", "answer": HOSTILE} for number in range(40)]
    (case.folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (case.folder / "graders.py").write_text(f"def score(item):\n    raise ValueError({HOSTILE!r})\n")
    own, good = {"type": "python", "path": "graders.py:score"}, {"type": "regex", "pattern": "(?s).*good.*"}
    graders = {"good": good, "o|k": good, "own": own}
    task = {"type": "graded", "path": "questions.jsonl"}
    tasks = {"apples": {**task, "graders": {"good": 1, "o|k": 1}}, "pears": {**task, "graders": {"own": 1}}}
    with chat_server(lambda asked: f"{HOSTILE} {'good' if asked['model'] != 'm' else ''}") as server:
        models = {name: {"url": server.url, "model": model} for name, model in (("one", "m"), ("two", HOSTILE[:60]))}
        case.change(tasks=tasks, graders=graders, models=models)
        assert "2 results missing" in run(case.config, expect=1).stderr
    return case


@pytest.fixture(scope="module")
def browser(reported: Case) -> Iterator[Browser]:
    """Chromium, opened once everything is reported: no other event loop can run while it is open."""
    with open_browser() as browser:
        yield browser


@pytest.fixture
def asked() -> list[Request]:
    """What the page asked for."""
    return []


@pytest.fixture
def page(browser: Browser, reported: Case, asked: list[Request]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("request", lambda request: asked.append(request))
    page.goto((reported.output / "report.html").as_uri(), wait_until="load")
    yield page
    context.close()


def test_prompts_answers_golds_and_names_stay_text_and_nothing_is_loaded(
    page: Page, reported: Case, asked: list[Request]
):
    report = reported.output / "report.html"
    assert {request.url for request in asked if not request.url.startswith("data:")} == {report.as_uri()}
    assert page.evaluate("window.hacked") is None
    assert page.locator("script, img, iframe, object, embed").count() == 0
    shown = page.locator("pre").all_text_contents()
    assert f"{HOSTILE} good" in shown  # an answer
    assert any(text.startswith("1") and text.endswith(HOSTILE) for text in shown)  # a prompt
    assert page.get_by_text(f"right answer: {HOSTILE}").count() > 0
    assert page.locator("dd").first.text_content() is not None
    assert any(HOSTILE[:60] in text for text in page.locator("dd").all_text_contents())


def test_the_numbers_of_the_page_are_those_of_the_results(page: Page, reported: Case):
    measure = reported.results()["tasks"]["apples"]["measures"]["reward"]
    assert measure["estimates"]["one"]["value"] == 0.0
    assert measure["estimates"]["two"]["value"] == 1.0
    table = page.locator("table").first
    names = table.locator("th").all_text_contents()
    rows = [
        dict(zip(names, row.locator("td").all_text_contents(), strict=True)) for row in table.locator("tbody tr").all()
    ]
    found = {row["model"]: row for row in rows}
    for model, estimate in measure["estimates"].items():
        assert found[model]["value"] == f"{estimate['value']:.1%}"
        assert found[model]["95 % interval"] == f"{estimate['low']:.1%}".rstrip("%") + f" to {estimate['high']:.1%}"
        assert (found[model]["prompts"], found[model]["no grade"]) == ("40", "0")
    compared = measure["comparisons"]["two"]
    assert found["two"]["difference"] == f"{compared['difference']['value']:+.1%}"
    assert found["two"]["verdict"] == compared["verdict"] == "better"
    assert page.get_by_text("apples: two is better than one by reward").count() == 1


def test_a_task_without_results_says_so_on_the_page(page: Page):
    assert page.get_by_text("have no grade").count() == 2


def test_comparisons_in_markdown_have_as_many_cells_in_each_row(reported: Case):
    lines = (Path(reported.output) / "comparison.md").read_text().splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert any(r"graders/o\|k" in line for line in tables)
    assert {line.replace(r"\|", "").count("|") for line in tables} == {13}
