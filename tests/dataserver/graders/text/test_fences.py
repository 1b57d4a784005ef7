import pytest

from posttrain.dataserver.graders.text.fences import unfenced


@pytest.mark.parametrize("text", ["```\n{}\n```", "```json\n{}\n```", " \n```JSON  \r\n{}\n```\n\n", "```c++\n{}```"])
def test_a_single_fence_is_taken_off(text: str) -> None:
    inside = unfenced(text)

    assert inside is not None
    assert inside.strip() == "{}"


@pytest.mark.parametrize(
    "text",
    ["{}", "```", "```json {} ```", "Here:\n```\n{}\n```", "```\n{}\n``` so", "```\n{}", "```two words\n{}\n```"],
)
def test_anything_around_it_is_left_there(text: str) -> None:
    assert unfenced(text) is None


def test_of_two_fences_the_outer_lines_are_taken_off() -> None:
    assert unfenced("```\n1\n```\n```\n2\n```") == "1\n```\n```\n2\n"
