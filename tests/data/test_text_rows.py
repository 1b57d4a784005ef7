"""Texts without turns as rows for continued pre-training."""

import json
from copy import deepcopy
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import TextsConfig
from posttrain.data.text_rows import TextRowEncoder, chunks, prepare_texts
from posttrain.errors import DataError, ModelError


@given(st.lists(st.integers(0, 9), min_size=2, max_size=60), st.integers(8, 20))
def test_every_token_but_the_first_is_trained_exactly_once_and_in_order(ids, length):
    rows = list(chunks(ids, length))
    trained = [token for row in rows for token, is_trained in zip(row.ids, row.trained, strict=True) if is_trained]
    assert trained == ids[1:]
    assert len(rows) == ceil((len(ids) - 1) / (length - 1))
    assert all(len(row.ids) <= length and not row.trained[0] for row in rows)


def test_a_chunk_begins_with_the_last_token_of_the_one_before():
    assert [row.ids for row in chunks([1, 2, 3, 4, 5, 6], 3)] == [[1, 2, 3], [3, 4, 5], [5, 6]]


@pytest.fixture
def prepare(own_cache, tmp_path, tiny_tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(path, max_length=16, report=lambda line: None, on_bad_record="error", **config):
        config = TextsConfig(type="text", path=str(tmp_path / path), **config)
        return prepare_texts("d", config, ChatConfig(max_length=max_length), tiny_tokenizer, on_bad_record, report)

    return call


def test_the_rows_of_a_text_together_are_its_tokens_and_the_end_token(prepare, tmp_path, tiny_tokenizer):
    text = "Once upon a time there was a <|im_end|> in a text, and nobody minded. " * 3
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    dataset = prepare("a.jsonl")
    tokens = [int(id_) for row in range(len(dataset)) for id_ in dataset.row(row)[0][row > 0 :]]
    end = tiny_tokenizer.eos_token_id
    assert tokens[-1] == end and tokens.count(end) == 1
    assert tiny_tokenizer.decode(tokens[:-1]) == text
    assert dataset.ledger.records == 1 and dataset.ledger.answers == 1 and dataset.ledger.end_share == 1.0
    assert len(set(dataset.contents.tolist())) == 1  # so that a split never divides a text


def test_text_files_are_one_text_each(prepare, tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "1.txt").write_text("\ufeffChapter one.")
    (tmp_path / "book" / "2.md").write_text("# Chapter two")
    lines = []
    dataset = prepare("book", max_length=2048, report=lines.append)
    assert len(dataset) == 2 and any("2 files" in line for line in lines)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "  "}, "is blank"),
        ({"text": ["a"]}, "needs a text in column 'text'"),
        ({"content": "a"}, "needs a text in column 'text', but has 'content'"),
        ({"text": "\ud800"}, "lone surrogate"),
    ],
)
def test_a_row_without_a_text_is_a_bad_record(prepare, tmp_path, row, message):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "good"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"a.jsonl:2: .*{message}"):
        prepare("a.jsonl")
    assert prepare("a.jsonl", on_bad_record="skip").ledger.bad == 1


def test_a_text_may_be_made_of_several_columns(prepare, tmp_path, tiny_tokenizer):
    (tmp_path / "a.jsonl").write_text(json.dumps({"title": "Cats", "body": "They purr."}) + "\n")
    dataset = prepare("a.jsonl", column="{title}: {body}", max_length=2048)
    assert tiny_tokenizer.decode(dataset.row(0)[0][:-1]) == "Cats: They purr."


def test_a_tokenizer_without_an_end_token_is_refused(tiny_tokenizer):
    without = deepcopy(tiny_tokenizer)
    without.eos_token = None
    with pytest.raises(ModelError, match="no end token"):
        TextRowEncoder(without, 16)
