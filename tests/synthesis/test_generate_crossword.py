"""Clues become rows with prompts; clues that cannot be used are reported with their lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.dataserver.graders.crossword import Crossword
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import ConfigError, DataError
from posttrain.synthesis.crossword import generate


def rows_of(folder: Path, *clues: dict[str, Any]) -> list[dict[str, Any]]:
    (folder / "clues.jsonl").write_text("".join(json.dumps(clue) + "\n" for clue in clues))
    generate(folder / "clues.jsonl", folder / "rows.jsonl", overwrite=True)
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("clue", "text", "enumeration"),
    [
        ({"clue": "Frozen dessert", "answer": "ICE CREAM", "enumeration": "3,5"}, "Frozen dessert", "(3,5)"),
        ({"clue": "Frozen dessert (3,5)", "answer": "ICECREAM"}, "Frozen dessert", "(3,5)"),
        ({"clue": "Frozen dessert (3,5)", "answer": "ice cream", "enumeration": 8}, "Frozen dessert", "(8)"),
        ({"clue": "Frozen dessert", "answer": "ice cream"}, "Frozen dessert", "(3,5)"),
        ({"clue": "Not first-hand", "answer": "hand-me-down"}, "Not first-hand", "(4-2-4)"),
        ({"clue": "Already seen", "answer": "déjà vu"}, "Already seen", "(4,2)"),
        # & is AND.
        ({"clue": "Music", "answer": "R & B"}, "Music", "(1,3,1)"),
        ({"clue": "Poem (by Kipling)", "answer": "IF"}, "Poem (by Kipling)", "(2)"),
    ],
)
def test_a_clue_is_asked_with_the_lengths_of_its_words(
    clue: dict[str, Any], text: str, enumeration: str, tmp_path: Path
):
    (row,) = rows_of(tmp_path, clue)
    assert (row["clue"], row["enumeration"], row["answer"]) == (text, enumeration, clue["answer"])
    assert f"\n{text} {enumeration}\n" in row["prompt"]
    grader = Crossword.model_validate({"extract": {"after": "Answer:"}})
    item = GradeInput(f"Answer: {clue['answer']}", None, gold=row["answer"], record=row).split()
    grader.check_row(item)
    assert grader.score(item).value == 1.0


def test_a_clue_that_comes_again_is_left_out_and_the_order_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first, second = {"clue": "Frozen dessert", "answer": "ice cream"}, {"clue": "Poem", "answer": "if"}
    again = {"clue": "FROZEN dessert (8)", "answer": "ICE-CREAM"}
    other = {"clue": "Poem", "answer": "ode"}
    assert [row["answer"] for row in rows_of(tmp_path, first, second, again, other)] == ["ice cream", "if", "ode"]
    assert "3 clues, 1 clue that came again left out" in capsys.readouterr().err


def test_all_clues_that_cannot_be_used_are_told_at_once_and_nothing_is_written(tmp_path: Path):
    source, output = tmp_path / "clues.jsonl", tmp_path / "rows.jsonl"
    source.write_text(
        '{"clue": "Poem", "answer": "if"}\n'
        '{"clue": "Poem", "answer": " "}\n'
        '{"answer": "if"}\n'
        '{"clue": "Drink", "answer": "7UP"}\n'
        '{"clue": "Poem (3)", "answer": "if"}\n'
        '{"clue": "Poem", "answer": "if", "enumeration": "two"}\n'
        '{"clue": "(2)", "answer": "if"}\n'
        "[]\n"
    )
    with pytest.raises(DataError) as error:
        generate(source, output, overwrite=False)
    head, *faults = str(error.value).splitlines()
    assert "7 clues cannot be used" in head
    expected = ("answer must be", "clue must be", "A to Z", "has 2 letters", "like (3,4)", "clue is empty", "an array")
    for line, (fault, words) in enumerate(zip(faults, expected, strict=True), start=2):
        assert f"{source}:{line}: " in fault and words in fault
    assert not output.exists()


def test_the_clues_are_no_output(tmp_path: Path):
    source = tmp_path / "clues.jsonl"
    source.write_text('{"clue": "Poem", "answer": "if"}\n')
    with pytest.raises(ConfigError, match="is an input"):
        generate(source, source, overwrite=True)
    source.write_text("\n")
    with pytest.raises(DataError, match="contains no clues"):
        generate(source, tmp_path / "rows.jsonl", overwrite=False)
