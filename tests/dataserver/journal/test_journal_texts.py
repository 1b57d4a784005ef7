"""Whatever a model, a data set or a grader produces, its row is stored, bounded and correctly typed."""

import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_rows import everything, row
from sqlalchemy import Engine

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.reader import JournalReader
from posttrain.dataserver.journal.records import StoredRow
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.schemas import Component


def test_a_long_completion_keeps_its_head_and_tail_and_the_digest_of_all(engine: Engine):
    writer = JournalWriter(engine, JournalConfig(max_completion_chars=200))
    completion = "a" * 1000 + "z" * 1000
    writer.add([row(completion=completion), row(1, completion="b" * 200)])
    writer.close()
    long, short = everything(JournalReader(engine))
    assert long.completion == "a" * 100 + "\n[… 1800 characters are not kept …]\n" + "z" * 100
    assert long.completion_digest == hashlib.sha256(completion.encode()).hexdigest()
    assert (long.completion_whole, short.completion_whole) == (False, True)
    assert short.completion == "b" * 200


def test_a_long_prompt_gold_and_detail_are_bounded(writer: JournalWriter, reader: JournalReader):
    detail = Component(score=1.0, weight=1.0, status="ok", ms=1.0, detail="d" * 10**6)
    writer.add([row(prompt="p" * 10**6, gold=["g" * 10**6], components={"exact": detail}, reason="r" * 10**6)])
    assert writer.flush()
    (stored,) = everything(reader)
    assert isinstance(stored.gold, str) and stored.gold.startswith('["ggg') and stored.gold.endswith('ggg"]')
    texts = (stored.prompt, stored.gold, stored.components["exact"].detail, stored.reason)
    assert [len(text) // 1000 for text in texts] == [20, 10, 1, 1]


@pytest.mark.parametrize("gold", [float("nan"), {"a": {("tuple",): 1}}])
def test_a_gold_that_json_cannot_hold_does_not_cost_the_row(gold: object, writer: JournalWriter, reader: JournalReader):
    writer.add([row(gold=gold)])
    assert writer.flush()
    assert everything(reader)[0].gold == f"not stored: a {type(gold).__name__} that cannot be written as JSON"


def test_numbers_that_no_column_holds_do_not_cost_the_row(writer: JournalWriter, reader: JournalReader):
    component = Component.model_construct(score=float("inf"), weight=1.0, status="ok", ms=float("nan"), detail="")
    writer.add([row(iteration=10**30, completion_tokens=10**30, reward=float("nan"), components={"exact": component})])
    assert writer.flush()
    (stored,) = everything(reader)
    assert (stored.iteration, stored.completion_tokens) == (2**63 - 1, 2**63 - 1)
    assert (stored.reward, stored.components["exact"].score, stored.components["exact"].ms) == (None, None, 0.0)


hostile = st.text(st.characters() | st.sampled_from("\0\ud800\udfff'\"\\\u2028"), max_size=30)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=hostile, text=hostile)
def test_no_text_costs_a_row(name: str, text: str, engine: Engine, config: JournalConfig):
    component = Component.model_construct(score=1.0, weight=1.0, status="ok", ms=1.0, detail=text)
    texts = dict.fromkeys(
        ("config_id", "run_id", "item_id", "stage", "dataset", "sample_id", "row_key", "reason"), text
    )
    writer = JournalWriter(engine, config)
    added = row(**texts, prompt=text, completion=text, gold={text: [text]}, components={name: component})
    writer.add([added])
    assert writer.flush()
    writer.close()
    assert writer.stats() == (1, 0, 0, None)
    kept = next(stored for stored in everything(JournalReader(engine)) if same_completion(stored, text))
    unkept = any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)
    assert kept.completion_whole is not unkept
    assert (kept.completion == text) is not unkept


def same_completion(stored: StoredRow, text: str) -> bool:
    return stored.completion_digest == hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
