"""Which format the first rows of a data set have, and what is said about it."""

import json

import pytest

from posttrain.config.sections.datasets import DatasetConfig, Format
from posttrain.conversation.messages import Message
from posttrain.data.formats.formats import FORMATS
from posttrain.data.records import Columns
from posttrain.data.sources import open_data, open_source
from posttrain.dpo.config.data import PairsDataset
from posttrain.dpo.preferences import open_preferences
from posttrain.errors import DataError

SHAREGPT = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
ROWS = {
    "sharegpt": SHAREGPT,
    "alpaca": {"instruction": "q", "input": "", "output": "a"},
    "openai": {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "parallel_tool_calls": False,
    },
    "columns": {"prompt": "q", "completion": "a"},
}
TURNS = (Message("user", "q"), Message("assistant", "a"))


def read(path, format_: Format = "auto", columns=None):
    return open_data(path, columns or Columns(), format_=format_).read("error", require_answer=True).records


def test_the_config_knows_every_format():
    assert set(Format.__args__) == {"auto", "columns", *FORMATS}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_that_agree_are_read_in_their_format(tmp_path, write_jsonl, name, ending):
    import datasets

    path = tmp_path / f"rows.{ending}"
    if ending == "jsonl":
        write_jsonl(path, [ROWS[name]] * 3)
    else:
        datasets.Dataset.from_list([ROWS[name]] * 3).to_parquet(str(path))
    source = open_data(path, Columns())
    assert [record.conversation.messages for record in source.read("error", require_answer=True).records] == [TURNS] * 3
    assert source.note is None if name == "columns" else source.note.endswith(f"format: {name} says so")


def test_one_row_of_another_kind_among_the_first_hundred_is_enough_to_guess_nothing(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "rows.jsonl", [SHAREGPT] * 99 + [ROWS["columns"]])
    with pytest.raises(DataError, match="set `format: sharegpt`") as refused:
        read(tmp_path / "rows.jsonl")
    assert "has 99 bad records" in str(refused.value)


def test_a_row_of_another_kind_after_the_first_hundred_is_a_bad_record(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "rows.jsonl", [SHAREGPT] * 100 + [{"conversations": [{"from": "nobody", "value": ""}]}])
    with pytest.raises(DataError, match=r"rows.jsonl:101: conversations\[0\]: from must be one of"):
        read(tmp_path / "rows.jsonl")


def test_a_named_format_is_not_guessed_and_not_announced(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "rows.jsonl", [SHAREGPT])
    assert open_data(tmp_path / "rows.jsonl", Columns(), format_="sharegpt").note is None
    with pytest.raises(DataError, match="the row looks like ShareGPT"):
        read(tmp_path / "rows.jsonl", "columns")


def test_renamed_columns_are_taken_at_their_word(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "rows.jsonl", [{"instruction": "q", "input": "ignored", "output": "a"}])
    columns = Columns(prompt="instruction", completion="output")
    assert read(tmp_path / "rows.jsonl", columns=columns)[0].conversation.messages == TURNS


def test_the_same_file_in_another_format_has_another_digest(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "rows.jsonl", [ROWS["alpaca"]])
    digests = {open_data(tmp_path / "rows.jsonl", Columns(), format_=name).digest for name in ("alpaca", "columns")}
    assert len(digests) == 2


def test_pairs_of_transcripts_are_read(tmp_path, write_jsonl):
    sides = {"chosen": "\n\nHuman: q\n\nAssistant: good", "rejected": "\n\nHuman: q\n\nAssistant: bad"}
    write_jsonl(tmp_path / "rows.jsonl", [sides])
    examples = open_preferences(PairsDataset(path=str(tmp_path / "rows.jsonl")))
    (pair,) = [attempt.parse() for attempt in examples.attempts()]
    assert pair.prompt.messages == TURNS[:1]
    assert [answer.messages[-1].content for answer in pair.answers] == ["good", "bad"]
    assert examples.note is not None and "format: transcripts" in examples.note


@pytest.mark.parametrize("name", ["alpaca", "openai"])
def test_a_format_with_columns_of_its_own_refuses_renamed_ones(name):
    with pytest.raises(ValueError, match=r"leave out columns\.prompt"):
        DatasetConfig.model_validate({"path": "rows.jsonl", "format": name, "columns": {"prompt": "question"}})
    with pytest.raises(ValueError, match=r"leave out columns\.chosen"):
        PairsDataset.model_validate({"path": "rows.jsonl", "format": name, "columns": {"chosen": "good"}})


def test_a_text_of_several_columns(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "rows.jsonl", [{"question": "Who?", "context": "Cats {}", "answer": 3}])
    config = {
        "path": str(tmp_path / "rows.jsonl"),
        "columns": {"prompt": "{question}\n\n{context}", "completion": "= {answer}"},
    }
    (record,) = open_source(DatasetConfig.model_validate(config)).read("error", require_answer=True).records
    assert record.conversation.messages == (Message("user", "Who?\n\nCats {}"), Message("assistant", "= 3"))


@pytest.mark.parametrize("context", [{}, {"context": None}, {"context": ["a"]}])
def test_a_template_is_strict_about_missing_columns(tmp_path, write_jsonl, context):
    write_jsonl(tmp_path / "rows.jsonl", [{"question": "Who?", "answer": "a", **context}])
    with pytest.raises(DataError, match="needs a text in column 'context'"):
        read(tmp_path / "rows.jsonl", columns=Columns(prompt="{question} {context}", completion="answer"))


def test_a_template_reads_the_columns_of_a_table(tmp_path):
    import datasets

    row = {"question": "Who?", "context": "Cats", "answer": "a", "other": 1}
    datasets.Dataset.from_list([row]).to_parquet(str(tmp_path / "rows.parquet"))
    (record,) = read(tmp_path / "rows.parquet", columns=Columns(prompt="{question} {context}", completion="answer"))
    assert record.conversation.messages[0].content == "Who? Cats"


def test_plain_texts_are_pointed_to_their_type(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "Once upon a time"}) + "\n")
    with pytest.raises(DataError, match="set `type: text`"):
        read(tmp_path / "rows.jsonl")
