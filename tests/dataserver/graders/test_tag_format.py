import itertools

import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.tag_format import TagFormat
from posttrain.dataserver.graders.text.completions import GradeInput

TAGS = ("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")


def score(grader: TagFormat, text: str) -> float:
    given = grader.score(GradeInput(text, text))
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize("counts", list(itertools.product((0, 1, 2), repeat=3)))
def test_three_tags_are_worth_minus_three_to_one_and_a_half_points(counts: tuple[int, int, int]) -> None:
    grader = TagFormat(mode="approximate", opened_in_prompt=True)
    text = "x" + "".join(tag * count for tag, count in zip(TAGS[1:], counts, strict=True))

    points = sum(0.5 if count == 1 else -1.0 for count in counts)

    assert 1.5 * 3 * score(grader, text) - 3 == pytest.approx(points)


def test_tags_in_another_order_are_not_the_exact_form() -> None:
    right = "<start_working_out>a<end_working_out><SOLUTION>b</SOLUTION>"

    for order in itertools.permutations(TAGS):
        text = f"{order[0]}a{order[1]}{order[2]}b{order[3]}"
        assert score(TagFormat(), text) == (text == right)
        assert score(TagFormat(mode="approximate"), text) == 1


def test_the_tags_can_be_others() -> None:
    grader = TagFormat(reasoning_open="[r]", reasoning_close="[/r]", solution_open="[s]", solution_close="[/s]")

    assert score(grader, "[r]a[/r][s]b[/s]") == 1


def test_tags_that_contain_one_another_are_refused() -> None:
    with pytest.raises(ValidationError, match="'<a>' is contained in another one"):
        TagFormat(reasoning_open="<a>", reasoning_close="<a>")
    with pytest.raises(ValidationError, match="'SOL' is contained in another one"):
        TagFormat(reasoning_open="SOL")
