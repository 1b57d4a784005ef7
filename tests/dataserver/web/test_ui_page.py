"""The dashboard in a real browser."""

import base64
import hashlib
import re
from importlib.resources import files

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from ui_app import Dashboard

from dataserver.journal.journal_rows import rewarded, row
from posttrain.dataserver.schemas import Component

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\u202e</pre></td>"


def scored(name: str, score: float | None, ms: float = 1.0, weight: float | None = 0.5) -> dict[str, Component]:
    status = "abstain" if score is None else "ok"
    return {name: Component(score=score, weight=weight, status=status, ms=ms, detail=f"{name} says so")}


@pytest.fixture
def filled(dashboard: Dashboard) -> Dashboard:
    """Run grpo (iterations 0 and 1, sums and words, one failure, one validation row), after an unnamed run."""
    dashboard.keep(row(0, run_id="", iteration=5, prompt="of another run"))
    both = scored("exact", 1.0, ms=3.0) | scored("style", 0.25, ms=0.5)
    dashboard.keep(
        *rewarded(0.0, 0.5, 1.0, None, request_id="a", run_id="grpo", iteration=0, components=scored("exact", 0.5)),
        *rewarded(1.0, 1.0, request_id="b", run_id="grpo", iteration=1, stage="hard", components=both),
        *rewarded(0.25, request_id="c", run_id="grpo", iteration=1, dataset="words", components=scored("exact", 0.25)),
        *rewarded(0.75, request_id="v", run_id="grpo", iteration=1, split="validation", components={}),
        row(
            1,
            run_id="grpo",
            iteration=1,
            stage="hard",
            dataset="words",
            status="error",
            reward=None,
            reason="exact: timeout",
        ),
    )
    return dashboard


@pytest.fixture
def shown(page: Page, filled: Dashboard) -> Page:
    """The page, showing the numbers of `filled`."""
    page.goto(f"{filled.address}/ui")
    expect(rows(page)).to_have_count(8)
    return page


def rows(page: Page) -> Locator:
    return page.locator("#completions tbody tr")


def menu(page: Page, name: str) -> Locator:
    return page.get_by_role("combobox", name=name)


def tile(page: Page, name: str) -> Locator:
    return page.locator(f"#tile-{name} dd").first


def numbers(page: Page, chart: str) -> list[list[str]]:
    """The table under a chart."""
    details = page.locator(f"#chart-{chart} details")
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    lines = details.locator("tbody tr")
    lines.first.wait_for()
    return [lines.nth(place).locator("td").all_text_contents() for place in range(lines.count())]


def test_the_counters_at_the_top_are_those_of_the_run(shown: Page):
    texts = {name: tile(shown, name).text_content() for name in ("iteration", "stage", "graded", "abstain", "dropped")}
    assert texts == {"iteration": "1", "stage": "hard", "graded": "8", "abstain": "25.0 %", "dropped": "2"}
    # (0 + 0.5 + 1 + 1 + 1 + 0.25) / 6
    assert tile(shown, "reward").text_content() == "0.625"
    expect(shown.locator("#tile-dropped")).to_have_class(re.compile("alarm"))
    expect(shown.locator("#tile-graded")).not_to_have_class(re.compile("alarm"))


def test_the_charts_have_the_numbers_of_the_journal(shown: Page):
    assert numbers(shown, "rewards") == [
        ["1", "sums", "1.000", "1.000", "1.000", "2 rewards"],
        ["1", "words", "0.250", "0.250", "0.250", "1 rewards"],
        ["0", "sums", "0.500", "0.000", "1.000", "3 rewards"],
    ]
    assert numbers(shown, "scores") == [
        # (1 + 1 + 0.25 + 1) / 4: the failed row has a score too
        ["1", "exact", "0.813", "0.250", "1.000", "4 scores"],
        ["1", "style", "0.250", "0.250", "0.250", "2 scores"],
        ["0", "exact", "0.500", "0.500", "0.500", "4 scores"],
    ]
    assert [line[:3] for line in numbers(shown, "statuses")] == [
        ["1", "ok", "75.0 %"],
        ["1", "abstain", "0.0 %"],
        ["1", "error", "25.0 %"],
        ["0", "ok", "75.0 %"],
        ["0", "abstain", "25.0 %"],
        ["0", "error", "0.0 %"],
    ]
    assert numbers(shown, "groups") == [
        ["1", "sums", "100.0 %", "100.0 %", "100.0 %", "1 groups"],
        ["0", "sums", "0.0 %", "0.0 %", "0.0 %", "1 groups"],
    ]


def test_the_lines_are_drawn_where_the_numbers_are(shown: Page):
    line = shown.locator("#chart-rewards polyline[data-name=sums]").get_attribute("points") or ""
    (x0, y0), (x1, y1) = (tuple(map(float, point.split(","))) for point in line.split())
    band = shown.locator("#chart-rewards .band").first.get_attribute("points") or ""
    heights = [float(point.split(",")[1]) for point in band.split()]
    bottom, top = heights[-1], heights[0]  # at iteration 0 the band goes from 0 to 1
    assert x0 < x1
    assert y0 == pytest.approx((top + bottom) / 2) and y1 == top and heights == [top, top, top, bottom]
    assert shown.locator("#chart-statuses rect.bar").count() == 4


def test_the_latency_of_graders_is_shown_with_the_slowest_first(shown: Page):
    lines = shown.locator("#latency tbody tr")
    assert [lines.nth(place).locator("td").all_text_contents()[:4] for place in range(lines.count())] == [
        ["exact", "1.00 ms", "3.00 ms", "8"],
        ["style", "0.50 ms", "0.50 ms", "2"],
    ]


def test_choosing_a_data_set_changes_counters_charts_and_table(shown: Page):
    menu(shown, "Data set").select_option("words")
    expect(rows(shown)).to_have_count(2)
    assert tile(shown, "graded").text_content() == "2"
    assert tile(shown, "reward").text_content() == "0.250"
    assert [line[1] for line in numbers(shown, "rewards")] == ["words"]


def test_choosing_a_status_changes_the_table(shown: Page):
    menu(shown, "Status").select_option("error")
    expect(rows(shown)).to_have_count(1)
    assert "words" in (rows(shown).text_content() or "")
    menu(shown, "Data set").select_option("sums")
    expect(shown.get_by_text("No completion matches these filters.")).to_be_visible()


def test_choosing_a_run_changes_everything(shown: Page):
    assert menu(shown, "Run").locator("option").all_text_contents() == ["grpo", "(no name)"]
    menu(shown, "Run").select_option("")
    expect(rows(shown)).to_have_count(1)
    expect(tile(shown, "iteration")).to_have_text("5")
    assert tile(shown, "graded").text_content() == "1"
    expect(rows(shown)).to_contain_text("of another run")


def test_validation_rows_are_shown_by_themselves(shown: Page):
    menu(shown, "Rows").select_option("validation")
    expect(rows(shown)).to_have_count(1)
    assert tile(shown, "graded").text_content() == "1"
    assert numbers(shown, "rewards") == [["1", "sums", "0.750", "0.750", "0.750", "1 rewards"]]


def test_iterations_are_typed_or_picked_in_a_chart(shown: Page):
    field = shown.get_by_label("Iterations")
    field.fill("0")
    field.press("Enter")
    expect(rows(shown)).to_have_count(4)
    field.fill("0-1")
    field.press("Enter")
    expect(rows(shown)).to_have_count(8)
    chart = shown.get_by_role("slider", name="Reward by data set")
    chart.focus()
    chart.press("ArrowLeft")
    assert chart.get_attribute("aria-valuetext") == "iteration 1: sums 1.000, words 0.250"
    chart.press("ArrowLeft")
    assert chart.get_attribute("aria-valuetext") == "iteration 0: sums 0.500, words –"
    chart.press("Enter")
    expect(rows(shown)).to_have_count(4)
    expect(field).to_have_value("0")


def test_iterations_that_are_none_are_not_asked_for(shown: Page):
    field = shown.get_by_label("Iterations")
    field.fill("many")
    field.press("Enter")
    shown.clock.run_for(6000)
    expect(rows(shown)).to_have_count(8)
    assert field.evaluate("field => field.matches(':invalid')")
    expect(shown.get_by_role("alert")).to_be_hidden()


def test_a_series_can_be_hidden(shown: Page):
    button = shown.locator("#chart-rewards").get_by_role("button", name="sums")
    button.click()
    expect(shown.locator("#chart-rewards polyline")).to_have_count(1)
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(shown.locator("#chart-rewards polyline")).to_have_count(2)


def test_the_choice_is_kept_in_the_address(shown: Page):
    menu(shown, "Data set").select_option("words")
    menu(shown, "Status").select_option("ok")
    expect(rows(shown)).to_have_count(1)
    shown.reload()
    expect(rows(shown)).to_have_count(1)
    expect(menu(shown, "Data set")).to_have_value("words")
    expect(menu(shown, "Status")).to_have_value("ok")


def test_a_completion_is_read_beside_its_prompt_gold_and_scores(page: Page, dashboard: Dashboard):
    components = scored("exact", 0.5, ms=12.0) | scored("cap", 1.0, weight=None) | scored("judge", None, ms=2500.0)
    completion = "<think>\n  48 / 2 = 24\n\n\tso  72</think>72"
    dashboard.keep(
        row(0, completion="older"),
        row(
            1,
            prompt="How many clips?",
            gold={"value": 72},
            completion=completion,
            reward=0.5,
            completion_tokens=1234,
            truncated=True,
            components=components,
        ),
    )
    page.goto(f"{dashboard.address}/ui")
    opener = page.get_by_role("button", name="Open completion 2")
    opener.focus()
    opener.press("Enter")
    reader = page.get_by_role("dialog")
    expect(reader.get_by_role("heading", level=2)).to_have_text("Completion 2 ok reward 0.500")
    text = reader.locator("#reader-completion pre")
    assert text.text_content() == completion
    assert text.evaluate("node => getComputedStyle(node).whiteSpaceCollapse ?? getComputedStyle(node).whiteSpace") in (
        "preserve",
        "pre-wrap",
    )
    assert reader.locator("#reader-prompt pre").text_content() == "How many clips?"
    assert reader.locator("#reader-gold pre").text_content() == '{\n  "value": 72\n}'
    lines = reader.locator("#reader-scores tbody tr")
    assert {
        (lines.nth(place).locator("td").nth(0).inner_text(), *lines.nth(place).locator("td.right").all_text_contents())
        for place in range(3)
    } == {
        ("exact\nexact says so", "0.500", "0.500", "12 ms"),
        ("cap\ncap says so", "1.000", "gate", "1.00 ms"),
        ("judge abstain\njudge says so", "–", "0.500", "2.50 s"),
    }
    expect(reader.locator("#reader-facts")).to_contain_text("1,234, cut off at the limit")
    reader.get_by_role("button", name="Older").click()
    expect(text).to_have_text("older")
    expect(reader.get_by_role("button", name="Older")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(reader).to_be_hidden()
    expect(opener).to_be_focused()


def test_a_long_completion_is_folded_until_one_wants_all_of_it(page: Page, dashboard: Dashboard):
    dashboard.keep(row(completion="\n".join(f"line {number}" for number in range(1000))))
    page.goto(f"{dashboard.address}/ui")
    rows(page).click()
    reader = page.get_by_role("dialog")
    expect(reader).to_be_visible()
    block = reader.locator("#reader-completion pre")
    folded = block.bounding_box()
    reader.get_by_role("button", name="Show all 8,889 characters").click()
    whole = block.bounding_box()
    assert folded and whole and folded["height"] < 700 < 15_000 < whole["height"]
    reader.get_by_role("button", name="Show less").click()
    assert block.bounding_box() == folded


def test_hostile_html_is_text_wherever_it_stands(page: Page, dashboard: Dashboard):
    names = dict.fromkeys(
        ("run_id", "dataset", "stage", "prompt", "completion", "gold", "reason", "sample_id"), HOSTILE
    )
    component = Component(score=1.0, weight=1.0, status="ok", ms=1.0, detail=HOSTILE)
    dashboard.keep(row(**names, config_id=HOSTILE, item_id=HOSTILE, components={HOSTILE: component}))
    page.goto(f"{dashboard.address}/ui")
    expect(rows(page)).to_have_count(1)
    assert tile(page, "stage").text_content() == HOSTILE
    assert page.locator("#chart-rewards .legend .name").text_content() == HOSTILE
    assert numbers(page, "scores")[0][1] == HOSTILE
    rows(page).click()
    reader = page.get_by_role("dialog")
    expect(reader).to_be_visible()
    for part in ("completion", "prompt", "gold"):
        assert reader.locator(f"#reader-{part} pre").text_content() == HOSTILE
    assert (reader.locator("#reader-scores tbody").text_content() or "").count(HOSTILE) == 2
    page.clock.run_for(6000)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.evaluate("window.hacked") is None


def test_even_html_that_came_into_the_page_would_not_run(shown: Page):
    shown.evaluate("html => document.querySelector('main').insertAdjacentHTML('beforeend', html)", HOSTILE)
    shown.evaluate("html => document.body.append(document.createRange().createContextualFragment(html))", HOSTILE)
    assert shown.locator("img").count() == 2
    shown.clock.run_for(1000)
    assert shown.evaluate("window.hacked") is None


def test_the_policy_names_the_script_of_the_page():
    page = files("posttrain.dataserver.web").joinpath("page.html").read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:,)|@import|url\(|https?://(?!www\.w3\.org/2000/svg)", page)


def test_new_completions_appear_by_themselves_unless_paused(shown: Page, filled: Dashboard):
    filled.keep(row(50, run_id="grpo", iteration=2))
    shown.clock.run_for(5000)
    expect(rows(shown)).to_have_count(9)
    expect(tile(shown, "iteration")).to_have_text("2")
    assert [line[:2] for line in numbers(shown, "rewards")] == [
        ["2", "sums"],
        ["1", "sums"],
        ["1", "words"],
        ["0", "sums"],
    ]
    shown.get_by_role("button", name="Pause").click()
    filled.keep(row(51, run_id="grpo", iteration=3))
    shown.clock.run_for(30_000)
    assert rows(shown).count() == 9
    expect(shown.get_by_text(re.compile(r"paused, as of 3\d s ago"))).to_be_visible()
    shown.get_by_role("button", name="Go on").click()
    expect(rows(shown)).to_have_count(10)


def test_a_reward_that_came_late_and_a_run_that_went_back_are_shown(shown: Page, filled: Dashboard):
    filled.keep(*(row(100 + number, run_id="grpo", iteration=number) for number in range(2, 40)))
    shown.clock.run_for(5000)
    expect(tile(shown, "iteration")).to_have_text("39")
    filled.keep(*(row(200 + number, run_id="grpo", iteration=number, reward=0.0) for number in range(20, 22)))
    shown.clock.run_for(5000)
    expect(tile(shown, "iteration")).to_have_text("21")
    assert next(line for line in numbers(shown, "rewards") if line[0] == "20") == [
        *("20", "sums", "0.500", "0.000", "1.000", "2 rewards"),
    ]


def test_a_long_run_is_shown_in_wider_cells(page: Page, dashboard: Dashboard):
    dashboard.keep(*(row(number, iteration=number, reward=float(number % 2)) for number in range(240)))
    page.goto(f"{dashboard.address}/ui")
    expect(rows(page)).to_have_count(50)
    assert len(numbers(page, "rewards")) == 240
    dashboard.keep(row(240, iteration=240, reward=0.0))
    page.clock.run_for(5000)
    expect(tile(page, "iteration")).to_have_text("240")
    found = numbers(page, "rewards")
    assert len(found) == 121
    assert found[0][0] == "240-241" and found[-1] == ["0-1", "sums", "0.500", "0.000", "1.000", "2 rewards"]
    assert tile(page, "graded").text_content() == "241"


def test_older_pages_stand_still(page: Page, dashboard: Dashboard):
    dashboard.keep(*(row(number) for number in range(70)))
    page.goto(f"{dashboard.address}/ui")
    expect(rows(page)).to_have_count(50)
    page.get_by_role("button", name="Older").click()
    expect(rows(page)).to_have_count(20)
    dashboard.keep(row(70))
    page.clock.run_for(5000)
    expect(tile(page, "graded")).to_have_text("71")
    assert rows(page).count() == 20
    page.get_by_role("button", name="Newest").click()
    expect(rows(page).first).to_contain_text("71")


def test_an_empty_journal_says_so_and_fills_by_itself(page: Page, dashboard: Dashboard):
    page.goto(f"{dashboard.address}/ui")
    expect(page.get_by_role("heading", name="No completion has been graded yet")).to_be_visible()
    expect(page.locator("#charts")).to_be_hidden()
    dashboard.keep(row())
    page.clock.run_for(5000)
    expect(rows(page)).to_have_count(1)
    expect(page.get_by_role("heading", name="No completion has been graded yet")).to_be_hidden()


def test_a_server_that_fails_is_told_and_what_was_shown_stays(shown: Page, filled: Dashboard):
    filled.broken.append(True)
    shown.clock.run_for(5000)
    expect(shown.get_by_role("alert")).to_have_text(
        re.compile("does not answer as it should: HTTP 503. Trying again in 10")
    )
    assert rows(shown).count() == 8
    filled.broken.clear()
    shown.clock.run_for(10_000)
    expect(shown.get_by_role("alert")).to_be_hidden()


def test_a_run_that_is_not_there_gives_way_to_the_newest(page: Page, filled: Dashboard):
    page.goto(f"{filled.address}/ui#run=nonsense&dataset=gone&iteration=1")
    expect(rows(page)).to_have_count(4)
    expect(menu(page, "Run")).to_have_value("grpo")


def test_it_is_usable_on_a_telephone(page: Page, filled: Dashboard):
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{filled.address}/ui")
    expect(rows(page)).to_have_count(8)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) == 400
    for button in page.get_by_role("button").all() + page.get_by_role("combobox").all():
        box = button.bounding_box()
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= 400)
    chart = page.locator("#chart-rewards svg").first.bounding_box()
    assert chart and chart["width"] > 300
    rows(page).first.click()
    close = page.get_by_role("dialog").get_by_role("button", name="Close")
    expect(close).to_be_in_viewport()
    assert page.evaluate(wide) == 400
    close.click()
    expect(page.get_by_role("dialog")).to_be_hidden()


CONTRAST = """node => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  let behind = node;
  while (parse(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const [light, dark] = [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor]
    .map((colour) => luminance(parse(colour))).sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(scheme: str, browser: Browser, filled: Dashboard):
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    page.goto(f"{filled.address}/ui")
    expect(rows(page)).to_have_count(8)
    texts = [
        "h1",
        ".tile dt",
        ".tile dd",
        ".note",
        ".legend .number",
        "summary",
        ".pill.ok",
        ".pill.error",
        "td.text",
        "a, .open",
    ]
    contrasts = {text: page.locator(text).first.evaluate(CONTRAST) for text in texts}
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    context.close()
    # The minimum of WCAG 2 level AA.
    assert min(contrasts.values()) >= 4.5, contrasts
    assert background == ("rgb(17, 21, 27)" if scheme == "dark" else "rgb(246, 247, 249)")
