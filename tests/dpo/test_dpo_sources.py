"""Preference data in files: two files read line by line, and every fault reported with its line."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.sections.datasets import ColumnsConfig, DatasetConfig, OnBadRecord
from posttrain.data.sources import Examples, ExampleStream
from posttrain.dpo.config.data import LabelledAnswers, OnUselessPair, PairColumnsConfig, PairsDataset, TwoFilesDataset
from posttrain.dpo.preferences import Preference, open_preferences
from posttrain.errors import DataError

Rows = list[dict[str, Any]]


def answered(prompt: str, answer: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "completion": answer, **more}


@pytest.fixture
def two_files(tmp_path: Path, write_jsonl, monkeypatch: pytest.MonkeyPatch):
    """`two_files(accepted, rejected)` writes both to the current folder and opens them."""
    monkeypatch.chdir(tmp_path)

    def call(accepted: Rows, rejected: Rows) -> Examples[Preference]:
        write_jsonl(Path("good.jsonl"), accepted)
        write_jsonl(Path("bad.jsonl"), rejected)
        return open_preferences(TwoFilesDataset(type="two_files", accepted="good.jsonl", rejected="bad.jsonl"))

    return call


@pytest.fixture
def one_file(tmp_path: Path, write_jsonl, monkeypatch: pytest.MonkeyPatch):
    """`one_file(rows, **columns)` writes the rows to the current folder and opens them as pairs."""
    monkeypatch.chdir(tmp_path)

    def call(rows: Rows, **columns: str) -> Examples[Preference]:
        write_jsonl(Path("pairs.jsonl"), rows)
        return open_preferences(PairsDataset(path="pairs.jsonl", columns=PairColumnsConfig(**columns)))

    return call


def pair(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"{number}?", "chosen": f"it is {number}", "rejected": "no idea", **more}


@dataclass
class Found:
    """The usable records with their lines, and the faults and counts."""

    records: list[tuple[int, Preference]]
    faults: list[str]
    bad: int
    useless: dict[str, int]
    read: int


def read(source: Examples[Preference], on_bad_record: OnBadRecord, on_useless_pair: OnUselessPair) -> Found:
    stream = ExampleStream(source, on_bad_record, on_useless_pair)
    return Found(list(stream), stream.bad.shown, stream.bad.count, stream.useless, stream.read)


def answers(found: Found) -> list[tuple[int, str, str]]:
    """The line number, and the last message of each side."""
    return [(line, *_last_of(record)) for line, record in found.records]


def _last_of(record: Preference) -> tuple[str, str]:
    assert record.chosen is not None and record.rejected is not None
    return record.chosen.messages[-1].content, record.rejected.messages[-1].content


def test_line_n_of_one_file_belongs_to_line_n_of_the_other(two_files):
    found = two_files([answered("a", "b"), answered("c", "d")], [answered("a", "x"), answered("c", "y")])
    assert answers(read(found, "error", "error")) == [(1, "b", "x"), (2, "d", "y")]


def test_both_files_are_read_as_for_sft_each_with_its_own_columns(tmp_path: Path, write_jsonl):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    good = write_jsonl(tmp_path / "good.jsonl", [{"messages": messages}])
    bad = write_jsonl(tmp_path / "bad.jsonl", [{"q": "a", "r": "x"}])
    other = DatasetConfig(path=str(bad), columns=ColumnsConfig(prompt="q", completion="r"))
    source = open_preferences(TwoFilesDataset(type="two_files", accepted=str(good), rejected=other))
    assert answers(read(source, "error", "error")) == [(1, "b", "x")]


def test_every_mismatch_of_prompts_is_told_with_both_line_numbers(two_files):
    accepted = [answered("a", "1"), answered("same", "2"), answered("c", "3")]
    rejected = [answered("x", "4"), answered("same", "5"), answered("y", "6")]
    source = two_files(accepted, rejected)
    # A blank line is no record, so the line numbers differ from there on.
    Path("bad.jsonl").write_text("\n" + "".join(json.dumps(row) + "\n" for row in rejected))
    with pytest.raises(DataError) as refused:
        read(source, "error", "drop")
    assert str(refused.value).splitlines() == [
        "good.jsonl with bad.jsonl has 2 bad records:",
        "  good.jsonl:1 and bad.jsonl:2: the prompts differ at messages[0] (user), character 0: 'a' vs. 'x'",
        "  good.jsonl:3 and bad.jsonl:4: the prompts differ at messages[0] (user), character 0: 'c' vs. 'y'",
        "correct them, or skip them with on_bad_record: skip",
    ]
    kept = read(source, "skip", "drop")
    assert answers(kept) == [(2, "2", "5")]
    assert (kept.read, len(kept.faults)) == (3, 2)


def test_of_many_mismatches_the_first_are_told_in_full_and_all_by_their_lines(two_files):
    accepted = [answered(f"a{number}" if number > 2 else "same", "1") for number in range(1, 31)]
    rejected = [answered(f"b{number}" if number > 2 else "same", "2") for number in range(1, 31)]
    with pytest.raises(DataError) as refused:
        read(two_files(accepted, rejected), "error", "drop")
    head, *lines, _ = str(refused.value).splitlines()
    assert head == "good.jsonl with bad.jsonl has 28 bad records:"
    assert len(lines) == 21
    assert lines[-1] == "  ... and 8 more, in lines 23/23, 24/24, 25/25, 26/26, 27/27, 28/28, 29/29, 30/30"


def test_files_of_unequal_length_are_refused_whatever_the_policy(two_files):
    source = two_files([answered("a", "b"), answered("c", "d")], [answered("a", "x")])
    with pytest.raises(DataError, match=r"good\.jsonl has 2 records and bad\.jsonl has 1; record n of one"):
        read(source, "skip", "drop")


def test_a_bad_record_of_one_file_keeps_its_place(two_files):
    source = two_files([answered("a", "b"), answered("c", "d")], [{"prompt": "a"}, answered("c", "y")])
    with pytest.raises(DataError, match=r"good\.jsonl:1 and bad\.jsonl:1: rejected: needs columns 'messages'"):
        read(source, "error", "drop")
    assert answers(read(source, "skip", "drop")) == [(2, "d", "y")]


def test_two_files_that_give_different_weights_are_refused(two_files):
    source = two_files([answered("a", "b", weight=2)], [answered("a", "x", weight=3)])
    with pytest.raises(DataError, match="the accepted row has weight 2 and the rejected one 3; give both the same"):
        read(source, "error", "drop")
    ((_, record),) = read(two_files([answered("a", "b", weight=2)], [answered("a", "x")]), "error", "drop").records
    assert record.weight == 2


def test_useless_pairs_are_dropped_and_counted_or_refused(one_file):
    rows = [
        pair(1),
        pair(2, rejected="it is 2"),
        pair(3, chosen=""),
        pair(4, rejected=[]),
        pair(5, chosen="no idea"),
        pair(6),
    ]
    source = one_file(rows)
    found = read(source, "error", "drop")
    assert [line for line, _ in found.records] == [1, 6]
    assert found.useless == {"identical answers": 2, "empty answer": 2}
    assert found.read == 6
    with pytest.raises(DataError) as refused:
        read(source, "skip", "error")
    assert str(refused.value).splitlines() == [
        "pairs.jsonl: 4 records from which nothing can be learnt:",
        "  pairs.jsonl:2: both answers are the same",
        "  pairs.jsonl:3: chosen is empty",
        "  pairs.jsonl:4: rejected is empty",
        "  pairs.jsonl:5: both answers are the same",
        "drop them with on_useless_pair: drop",
    ]


def test_data_of_which_nothing_is_left_are_refused(one_file):
    with pytest.raises(DataError, match="1 record from which nothing can be learnt"):
        read(one_file([pair(1, rejected="it is 1")]), "error", "drop")
    with pytest.raises(DataError, match="has 1 bad record and no usable one"):
        read(one_file([{"prompt": "a"}]), "skip", "drop")
    with pytest.raises(DataError, match=r"pairs\.jsonl holds no records"):
        read(one_file([]), "skip", "drop")


def test_a_column_that_was_renamed_and_is_nowhere_is_told(one_file):
    with pytest.raises(DataError, match=r"columns\.system is 'sistem', which no record has; did you mean 'system'\?"):
        read(one_file([pair(1, system="Be brief.")], system="sistem"), "error", "drop")


def test_a_line_that_is_not_json_is_one_bad_record(one_file):
    source = one_file([pair(1)])
    with Path("pairs.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(DataError, match=r"pairs\.jsonl:2: "):
        read(source, "error", "drop")
    assert [line for line, _ in read(source, "skip", "drop").records] == [1]


def test_tables_can_be_read_too(tmp_path: Path):
    from datasets import Dataset

    (tmp_path / "pairs.csv").write_text("prompt,chosen,rejected\na,b,c\n")
    whole = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    other = [whole[0], {"role": "assistant", "content": "c"}]
    rows = {"id": [7], "chosen": [whole], "rejected": [other], "score_chosen": [4.5]}
    Dataset.from_dict(rows).to_parquet(tmp_path / "pairs.parquet")
    for name in ("pairs.csv", "pairs.parquet"):
        source = open_preferences(PairsDataset(path=str(tmp_path / name)))
        assert [each[1:] for each in answers(read(source, "error", "drop"))] == [("b", "c")]


def test_messages_are_read_from_the_json_text_that_a_table_has_also_beside_a_prompt(tmp_path: Path):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    other = [turns[0], {"role": "assistant", "content": "c"}]
    for name, prompt, cut in (("text", "a", 0), ("messages", json.dumps(turns[:1]), 0), ("answers", "a", 1)):
        path = tmp_path / f"{name}.csv"
        with path.open("w", newline="") as file:
            cells = [prompt, json.dumps(turns[cut:]), json.dumps(other[cut:])]
            csv.writer(file).writerows([["prompt", "chosen", "rejected"], cells])
        found = read(open_preferences(PairsDataset(path=str(path))), "error", "drop")
        assert answers(found) == [(2, "b", "c")], name
        assert [turn.content for turn in found.records[0][1].prompt.messages] == ["a"], name


def test_text_that_only_looks_like_json_is_text(one_file):
    rows = [pair(1, chosen="[1, 2]", rejected="[sic]"), pair(2, chosen='{"a": 1}', rejected="{")]
    found = read(one_file(rows), "error", "drop")
    assert answers(found) == [(1, "[1, 2]", "[sic]"), (2, '{"a": 1}', "{")]


def test_labels_in_a_table_are_text_and_each_answer_is_a_record(tmp_path: Path):
    (tmp_path / "marked.csv").write_text("prompt,completion,label\na,b,True\nc,d,0\ne,f,maybe\n")
    source = open_preferences(LabelledAnswers(type="labelled", path=str(tmp_path / "marked.csv")))
    with pytest.raises(DataError, match=r"marked\.csv:4: label must be true or false, or 1 or 0, not 'maybe'"):
        read(source, "error", "drop")
    found = read(source, "skip", "drop")
    assert [(record.chosen is None, record.rejected is None) for _, record in found.records] == [
        (False, True),
        (True, False),
    ]


def test_the_digest_changes_with_either_file(two_files):
    accepted, rejected = [answered("a", "b")], [answered("a", "x")]
    digests = [
        two_files(accepted, rejected).digest,
        two_files([answered("a", "z")], rejected).digest,
        two_files(accepted, [answered("a", "z")]).digest,
        two_files(rejected, accepted).digest,
    ]
    assert len(set(digests)) == 4
