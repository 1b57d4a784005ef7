"""Reading files and hub data sets as records."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from posttrain.base.files import content_digest
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.conversation.messages import Conversation, Message
from posttrain.data.records import Columns
from posttrain.data.sources import open_data, open_source
from posttrain.errors import DataError

TURNS = (Message("user", "q"), Message("assistant", "a"))


PAIR = {"prompt": "q", "completion": "a"}


QA = Columns(prompt="question", completion="answer")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(source, columns=None, *, require_answer=True, on_bad_record="error", split="train"):
    return open_data(source, columns or Columns(), split).read(on_bad_record, require_answer=require_answer)


def test_every_format_gives_the_same_records(folder, write_jsonl):
    import datasets

    rows = [{"question": "What is 007?", "answer": 'A "spy",\nor 7'}, {"question": "é?", "answer": "NA"}]
    write_jsonl(folder / "a.jsonl", rows)
    (folder / "a.json").write_text(json.dumps(rows, indent=2))
    (folder / "a.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))
    table = datasets.Dataset.from_list(rows)
    table.to_parquet("a.parquet")
    table.to_csv("a.csv")
    table.to_csv("a.tsv", sep="\t")
    wanted = [Conversation((Message("user", r["question"]), Message("assistant", r["answer"]))) for r in rows]
    for name in ("a.jsonl", "a.json", "a.jsonl.gz", "a.parquet", "a.csv", "a.tsv"):
        got = read(name, QA)
        assert [record.conversation for record in got.records] == wanted, name
        assert [record.index for record in got.records] == [0, 1]
        assert got.faults == []
        assert got.digest == content_digest(folder / name)


def test_a_record_knows_its_line_and_its_weight(folder):
    (folder / "a.jsonl").write_text('\n{"prompt": "q", "completion": "a", "weight": 2}\n\n' + json.dumps(PAIR))
    assert [(r.index, r.line, r.weight) for r in read("a.jsonl").records] == [(0, 2, 2.0), (1, 4, 1.0)]


def test_parquet_keeps_tools_and_calls_as_they_were(folder, write_jsonl):
    import datasets

    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}
    row = {"messages": [{"role": "user", "content": "q"}, call], "tools": tools, "weight": 0.5}
    datasets.Dataset.from_list([row]).to_parquet("a.parquet")
    write_jsonl(folder / "a.jsonl", [row])
    assert read("a.parquet").records == read("a.jsonl").records


def test_a_prompt_alone_is_a_record_where_no_answer_is_wanted(folder, write_jsonl):
    write_jsonl(folder / "in.jsonl", [{"prompt": "q"}])
    assert read("in.jsonl", require_answer=False).records[0].conversation.messages == TURNS[:1]
    with pytest.raises(DataError, match="1 bad record"):
        read("in.jsonl")


@pytest.fixture
def hub(folder, monkeypatch):
    """A folder that stands in for the hub; the real `load_dataset` reads `owner/name` from it."""
    import datasets

    load = datasets.load_dataset

    def load_from_folder(name, subset, split):
        return load(str(folder / "hub" / name), subset, split=split, cache_dir=str(folder / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", load_from_folder)
    (folder / "hub" / "owner" / "name").mkdir(parents=True)
    return folder / "hub" / "owner" / "name"


def test_a_hub_data_set_is_read_like_a_file(hub, write_jsonl):
    write_jsonl(hub / "train.jsonl", [{**PAIR, "id": 1}, {"prompt": "q"}])
    got = read("owner/name", on_bad_record="skip")
    assert [record.conversation.messages for record in got.records] == [TURNS]
    assert got.faults[0].startswith("owner/name row 2: needs columns ")
    assert got.digest == read("owner/name", on_bad_record="skip").digest
    with pytest.raises(DataError, match=r'owner/name cannot be loaded .*Unknown split "test"'):
        read("owner/name", split="test")


def test_a_subset_of_a_hub_data_set_is_named_behind_a_colon(hub, write_jsonl):
    for name in ("main", "other"):
        write_jsonl(hub / f"{name}.jsonl", [{"prompt": "q", "completion": name}])
    configs = [{"config_name": name, "data_files": f"{name}.jsonl"} for name in ("main", "other")]
    (hub / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    assert read("owner/name:other").records[0].conversation.messages[1].content == "other"
    with pytest.raises(DataError, match=r"\['main', 'other'\].*; write owner/name:subset$"):
        read("owner/name")


def test_a_source_from_a_config_knows_its_digest_before_it_is_read(folder, write_jsonl):
    write_jsonl(folder / "a.jsonl", [{"question": "q", "answer": "a"}])
    config = DatasetConfig.model_validate(
        {"path": "a.jsonl", "columns": {"prompt": "question", "completion": "answer"}}
    )
    source = open_source(config)
    assert source.digest == content_digest(folder / "a.jsonl")
    assert source.read("error", require_answer=True).records[0].conversation.messages == TURNS


def test_a_record_of_ten_megabytes_is_read(folder, write_jsonl):
    write_jsonl(folder / "a.jsonl", [{"prompt": "q" * 10_000_000, "completion": "a"}])
    assert len(read("a.jsonl").records[0].conversation.messages[0].content) == 10_000_000


def test_reading_lines_imports_nothing_heavy(folder, write_jsonl):
    write_jsonl(folder / "a.jsonl", [PAIR])
    code = (
        "import sys; from posttrain.data.sources import *; from posttrain.data.records import Columns;"
        "open_data('a.jsonl', Columns()).read('error', require_answer=True);"
        "print({'torch', 'transformers', 'datasets', 'pandas', 'pyarrow'} & set(sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
