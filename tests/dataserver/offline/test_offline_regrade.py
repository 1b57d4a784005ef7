"""What regrading would change, compared with numbers worked out by hand."""

from typing import Any

import pytest
from offline_cases import table_rows

from posttrain.dataserver.data.dataset_rows import Row
from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.offline.earlier import Earlier
from posttrain.dataserver.offline.grading import Judged
from posttrain.dataserver.offline.regrade import Changes, kind_of_change
from posttrain.dataserver.schemas import Component, GradeResult


def component(score: float | None, weight: float | None, detail: str = "") -> Component:
    return Component(score=score, weight=weight, status="abstain" if score is None else "ok", ms=1.0, detail=detail)


def earlier(number: int, reward: float | None, status: str = "", **components: Component) -> Earlier:
    """An earlier grade of a completion."""
    return Earlier(
        place=f"journal row {number}",
        number=number,
        sample_id=f"sums:{number}:abc",
        iteration=0,
        text="",
        prompt="",
        completion_tokens=None,
        truncated=None,
        is_whole=True,
        status=status or ("abstain" if reward is None else "ok"),  # type: ignore[arg-type]
        reward=reward,
        components=components,
    )


def now(reward: float | None, status: str = "", dataset: str = "sums", **components: Component) -> Judged:
    """Its grade now."""
    target = Target(dataset, Row(0, "1", "abc", {}), False, None, "")
    described: dict[str, Any] = {"item_id": "", "status": status or ("abstain" if reward is None else "ok")}
    return Judged(target, "all", GradeResult(**described, reward=reward, components=components))


def shown(changes: Changes, capsys: pytest.CaptureFixture[str]) -> str:
    changes.show()
    return capsys.readouterr().err


def test_the_tables_are_right_to_the_last_digit(capsys: pytest.CaptureFixture[str]):
    # The weights change from 1:1 to 3:1, and a missing score now counts as 0.
    changes = Changes()
    for number, (one, two, before, after) in enumerate(
        [(1.0, 0.0, 0.5, 0.75), (0.0, 1.0, 0.5, 0.25), (0.5, 0.5, 0.5, 0.5), (1.0, None, None, 0.75)], start=1
    ):
        changes.add(
            earlier(number, before, one=component(one, 0.5), two=component(two, 0.5)),
            now(after, one=component(one, 0.75), two=component(two, 0.25, "told" if two is None else "")),
        )
    text = shown(changes, capsys)
    rows = table_rows(text)
    # 1.5/3 before; (0.75 + 0.25 + 0.5 + 0.75)/4 now.
    assert ["sums", "4", "3", "3", "4", "0.5000", "0.5625"] in rows
    # (1 + 0 + 0.5 + 1)/4 and (0 + 1 + 0.5)/3
    assert ["sums", "one", "0.5", "0.75", "0.6250", "0.6250"] in rows
    assert ["two", "0.5", "0.25", "0.5000", "0.5000"] in rows
    assert text.endswith(
        "3 of 4 completions changed: 1 with a higher reward, 1 with a lower reward, 1 from abstain to ok\n"
        "the largest changes:\n"
        "  journal row 4 (sums:4:abc): abstain → 0.7500\n"
        "  journal row 1 (sums:1:abc): 0.5000 → 0.7500\n"
        "  journal row 2 (sums:2:abc): 0.5000 → 0.2500\n"
        "why scores are missing now:\n"
        "        1  abstain: two: told (first: journal row 4)\n"
    )


def test_where_nothing_changes_it_says_so(capsys: pytest.CaptureFixture[str]):
    changes = Changes()
    # Summing the same shares in another order changes the last bit.
    changes.add(earlier(1, 0.1 + 0.2, one=component(0.3, 1.0)), now(0.3, one=component(0.3, 1.0)))
    assert shown(changes, capsys).endswith("none of 1 completions changed\n")


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ((0.5, "ok"), (0.75, "ok"), "with a higher reward"),
        ((0.5, "ok"), (0.25, "ok"), "with a lower reward"),
        ((0.5, "ok"), (0.5, "ok"), None),
        ((None, "abstain"), (0.0, "ok"), "from abstain to ok"),
        ((0.0, "ok"), (None, "abstain"), "from ok to abstain"),
        ((1.0, "ok"), (None, "error"), "from ok to error"),
        ((None, "error"), (None, "abstain"), "from error to abstain"),
        ((None, "error"), (None, "error"), None),
    ],
)
def test_a_status_that_changes_is_a_change(
    before: tuple[float | None, str], after: tuple[float | None, str], kind: str | None
):
    assert kind_of_change(earlier(1, *before), now(*after).result) == kind


def test_the_ten_largest_changes_are_shown_and_of_equal_ones_the_first(capsys: pytest.CaptureFixture[str]):
    changes = Changes()
    for number in range(1, 31):
        # Every third reward rises by 0.5, the others by 0.25.
        changes.add(earlier(number, 0.0), now(0.25 if number % 3 else 0.5))
    lines = shown(changes, capsys).splitlines()
    start = lines.index("the largest changes:") + 1
    assert [line.split()[2] for line in lines[start:]] == [str(number) for number in range(3, 31, 3)]
    changes = Changes()
    for number in range(1, 31):
        changes.add(earlier(number, 0.0), now(0.25))
    assert [line.split()[2] for line in shown(changes, capsys).splitlines()[-10:]] == [str(n) for n in range(1, 11)]


def test_a_change_is_explained_by_what_the_graders_say_otherwise(capsys: pytest.CaptureFixture[str]):
    changes = Changes()
    before = {"same": component(1.0, 0.5, "fine"), "strict": component(1.0, 0.5), "old": component(0.0, None)}
    after = {
        "same": component(1.0, 0.5, "fine"),
        "strict": component(None, 0.5, "too\nshort"),
        "new": component(0.0, 1),
    }
    changes.add(earlier(1, 1.0, **before), now(None, **after))
    assert "  journal row 1 (sums:1:abc): 1.0000 → abstain: strict 1.0000 → abstain, too short; new 0.0000\n" in shown(
        changes, capsys
    )


def test_graders_that_come_and_go_have_a_dash_on_the_other_side(capsys: pytest.CaptureFixture[str]):
    changes = Changes()
    changes.add(earlier(1, 1.0, old=component(1.0, 1.0)), now(0.5, new=component(0.5, 1.0), gate=component(1.0, None)))
    rows = table_rows(shown(changes, capsys))
    assert ["sums", "old", "1", "–", "1.0000", "–"] in rows
    assert ["new", "–", "1", "–", "0.5000"] in rows
    assert ["gate", "–", "gate", "–", "1.0000"] in rows


def test_each_data_set_has_its_own_numbers_and_its_rows_stand_together(capsys: pytest.CaptureFixture[str]):
    changes = Changes()
    for number in (1, 2):
        for dataset, reward in (("sums", 1.0), ("words", 0.25)):
            changes.add(earlier(number, 0.0), now(reward, dataset=dataset, **{f"of_{dataset}": component(reward, 1.0)}))
    rows = table_rows(shown(changes, capsys))
    assert ["sums", "2", "2", "2", "2", "0.0000", "1.0000"] in rows
    assert ["words", "2", "2", "2", "2", "0.0000", "0.2500"] in rows


def test_a_place_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]):
    changes = Changes()
    changes.add(earlier(100, 0.0), now(1.0))
    # Some libraries render `:100:` as an emoji.
    assert "  journal row 100 (sums:100:abc): 0.0000 → 1.0000\n" in shown(changes, capsys)
