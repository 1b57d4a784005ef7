"""What the page shows of a trainer's steps, in a real browser."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from ui_app import Dashboard

from dataserver.journal.journal_rows import rewarded, row
from posttrain.dataserver.step_reports import GroupReport, StepReport

HOSTILE = "<img src=x onerror='window.hacked = 1'>"


def a_group(reward: float | None, **changes: Any) -> GroupReport:
    usual = {"slot": 0, "sample_id": "sums:0:abc", "dataset": "sums", "trained": True, "mean_reward": reward}
    return GroupReport(**usual | changes)


def a_report(step: int, *groups: GroupReport, first: bool = False, **numbers: float | None) -> StepReport:
    named = {name.replace("__", "/"): value for name, value in numbers.items()}
    return StepReport(run_id="grpo", step=step, numbers=named, groups=list(groups), first=first)


@pytest.fixture
def filled(dashboard: Dashboard) -> Dashboard:
    """Two steps of a run, whose completions are graded three iterations ahead."""
    for iteration in range(5):
        dashboard.keep(*rewarded(0.0, 1.0, request_id=f"i{iteration}", run_id="grpo", iteration=iteration))
    rejected = [
        a_group(1.0, slot=slot, verdict=f"reward_spread: {spread}", trained=False)
        for slot, spread in ((1, "0.0"), (2, "1e-9"))
    ]
    replayed = a_group(0.5, origin="replayed", age=4)
    dashboard.report(
        a_report(0, a_group(0.25), *rejected, async__age_mean=0.0, async__age_max=0.0, seconds__wait=12.5),
        a_report(
            1,
            a_group(0.0),
            replayed,
            a_group(None, slot=1, verdict="unscored", trained=False),
            a_group(1.0, dataset="words", slot=3),
            async__age_mean=1.5,
            async__age_max=3.0,
            sampling__effective_share=0.75,
            rollouts__replayed_share=0.25,
            filters__unscored=0.25,
            filters__reward_spread=None,
            seconds__wait=2.5,
            seconds__engine_idle=0.5,
            loss=17.0,
        ),
    )
    return dashboard


@pytest.fixture
def shown(page: Page, filled: Dashboard) -> Page:
    page.goto(f"{filled.address}/ui")
    expect(page.locator("#training")).to_be_visible()
    return page


def numbers(page: Page, chart: str) -> list[list[str]]:
    """The table under a chart."""
    details = page.locator(f"#chart-{chart} details")
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    lines = details.locator("tbody tr")
    lines.first.wait_for()
    return [lines.nth(place).locator("td").all_text_contents() for place in range(lines.count())]


def lines_of(page: Page, chart: str) -> Locator:
    return page.locator(f"#chart-{chart} polyline")


def test_asked_and_trained_rewards_are_two_curves(shown: Page):
    # Step 0 asks 0.25, 1 and 1, and trains 0.25. Step 1 asks 0 and 1, and also trains the replayed 0.5.
    assert [[*line[:3], line[5]] for line in numbers(shown, "trained")] == [
        ["1", "asked", "0.500", "2 groups"],
        ["1", "trained", "0.500", "3 groups"],
        ["0", "asked", "0.750", "3 groups"],
        ["0", "trained", "0.250", "1 groups"],
    ]
    assert lines_of(shown, "trained").count() == 2


def test_the_chosen_data_set_holds_for_groups_too(shown: Page):
    shown.get_by_role("combobox", name="Data set").select_option("words")
    assert [line[:3] for line in numbers(shown, "trained")] == [["1", "asked", "1.000"], ["1", "trained", "1.000"]]
    assert [line[:3] for line in numbers(shown, "verdicts")] == [["1", "accepted", "100.0 %"]]


def test_groups_are_shown_by_their_verdicts(shown: Page):
    found = {(line[0], line[1]): line[2] for line in numbers(shown, "verdicts")}
    assert found == {
        ("0", "accepted"): "33.3 %",
        ("0", "reward_spread"): "66.7 %",
        ("0", "unscored"): "0.0 %",
        ("1", "accepted"): "75.0 %",
        ("1", "reward_spread"): "0.0 %",
        ("1", "unscored"): "25.0 %",
    }
    assert numbers(shown, "filters") == [["1", "unscored", "25.0 %", "25.0 %", "25.0 %", "1 steps"]]


def test_ages_shares_and_waits_are_the_trainers_numbers(shown: Page):
    assert [line[:3] for line in numbers(shown, "ages")] == [
        ["1", "mean", "1.50"],
        ["1", "highest", "3.00"],
        ["0", "mean", "0.00"],
        ["0", "highest", "0.00"],
    ]
    assert [line[:3] for line in numbers(shown, "shares")] == [
        ["1", "effective", "75.0 %"],
        ["1", "replayed", "25.0 %"],
    ]
    assert [line[:3] for line in numbers(shown, "waits")] == [
        ["1", "trainer", "2.50"],
        ["1", "engine", "0.50"],
        ["0", "trainer", "12.5"],
    ]
    assert shown.get_by_text("17").count() == 0


def test_an_axis_grows_with_its_values(shown: Page):
    ticks = shown.locator("#chart-waits svg text[text-anchor=end]")
    expect(ticks.filter(has_text="20.0")).to_have_count(1)
    height = shown.locator("#chart-ages polyline[data-name=highest]").get_attribute("points") or ""
    (_, bottom), (_, top) = (tuple(map(float, point.split(","))) for point in height.split())
    # The plot is 180 high, and its axis ends at 4.
    assert bottom - top == pytest.approx(180 * 3 / 4, abs=0.2)


def test_steps_appear_by_themselves_though_grades_are_ahead(shown: Page, filled: Dashboard):
    filled.report(a_report(2, a_group(0.875)))
    shown.clock.run_for(5000)
    expect(shown.locator("#chart-trained circle")).to_have_count(6)
    assert numbers(shown, "trained")[0][:3] == ["2", "asked", "0.875"]


def test_steps_that_a_resumed_run_forgot_disappear(shown: Page, filled: Dashboard):
    filled.report(*(a_report(step, a_group(0.5)) for step in range(2, 30)))
    shown.clock.run_for(5000)
    expect(shown.locator("#chart-trained circle")).to_have_count(60)
    filled.report(a_report(5, a_group(0.125), first=True))
    shown.clock.run_for(5000)
    shown.clock.run_for(5000)
    expect(shown.locator("#chart-trained circle")).to_have_count(12)
    assert numbers(shown, "trained")[0][:3] == ["5", "asked", "0.125"]


def test_without_reports_there_are_no_charts_of_training(page: Page, dashboard: Dashboard):
    dashboard.keep(row(0))
    page.goto(f"{dashboard.address}/ui")
    expect(page.locator("#chart-rewards")).to_be_visible()
    expect(page.locator("#training")).to_be_hidden()


def test_a_run_that_only_reported_steps_is_shown(page: Page, dashboard: Dashboard):
    dashboard.report(a_report(7, a_group(0.5)))
    page.goto(f"{dashboard.address}/ui")
    expect(page.locator("#training")).to_be_visible()
    assert page.locator("#tile-iteration dd").first.text_content() == "7"
    assert numbers(page, "trained")[0][:3] == ["7", "asked", "0.500"]


def test_a_completion_says_where_it_came_from(page: Page, dashboard: Dashboard):
    sampled = {"lowest_version": 118, "highest_version": 120, "temperature": 0.9, "slot": 3}
    origins = ("fresh", "substitute", "spare", "carried")
    dashboard.keep(row(0))
    dashboard.keep(*(row(n, **sampled, attempt=n % 2, origin=origin) for n, origin in enumerate(origins, start=1)))
    dashboard.keep(row(9, lowest_version=7, highest_version=7, task="addition"))
    page.goto(f"{dashboard.address}/ui")
    facts = page.locator("#reader-facts")
    for number, origin in enumerate(origins, start=2):
        page.get_by_role("button", name=f"Open completion {number}").click()
        expect(facts).to_contain_text(f"{origin}: ")
        expect(facts).to_contain_text("versions 118 to 120")
        expect(facts).to_contain_text("0.9")
        expect(facts).to_contain_text("3, substitute 1" if number % 2 == 0 else "Slot3Came")
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Open completion 6").click()
    expect(facts).to_contain_text("version 7")
    expect(facts).to_contain_text("sums, task addition")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Open completion 1", exact=True).click()
    expect(facts).to_contain_text("Slot")
    for absent in ("Came from", "Weights", "Temperature", "task", "Trained"):
        expect(facts).not_to_contain_text(absent)


def test_a_completion_says_in_which_steps_it_was_trained(page: Page, dashboard: Dashboard):
    asked = {"iteration": 2, "slot": 3, "sample_id": "sums:0:abc"}
    dashboard.keep(row(0, run_id="grpo", **asked), row(1, run_id="grpo", **{**asked, "slot": 4}))
    other = {**asked, "slot": 4}
    dashboard.report(
        a_report(3, a_group(0.5, **asked, verdict=HOSTILE), a_group(0.5, **other, trained=False)),
        a_report(5, a_group(0.5, **asked, origin="replayed"), a_group(0.5, **other, origin="cached")),
        a_report(1007, a_group(0.5, **asked, origin="replayed")),
        a_report(1008, a_group(0.5, **other, trained=False, verdict="reward_spread: 0")),
    )
    page.goto(f"{dashboard.address}/ui")
    facts = page.locator("#reader-facts")
    page.get_by_role("button", name="Open completion 1").click()
    expect(facts).to_contain_text(
        f"in step 3, though rejected by {HOSTILE}; again, replayed, in step 5; again, replayed, in step 1,007"
    )
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Open completion 2").click()
    expect(facts).to_contain_text(
        "not in step 3: no slot needed it; with a remembered solution in its group in step 5; "
        "not in step 1,008: rejected by reward_spread: 0"
    )


def test_hostile_names_are_text(page: Page, dashboard: Dashboard):
    group = a_group(0.5, dataset=HOSTILE, verdict=HOSTILE, sample_id=HOSTILE)
    dashboard.report(StepReport(run_id=HOSTILE, step=0, numbers={f"filters/{HOSTILE}": 1.0}, groups=[group]))
    page.goto(f"{dashboard.address}/ui")
    assert numbers(page, "filters")[0][1] == HOSTILE
    assert numbers(page, "verdicts")[0][1] == HOSTILE.split(":")[0]
    page.clock.run_for(6000)
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
