"""Preparing data in batches: same result as all at once, and bounded memory.

The tiny tokenizer encodes `z` and `Q` as one token each, so a row of n `z` and m `Q` has n + m + 10 tokens.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import ColumnsConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.masks import TokenRow, trained_ends
from posttrain.conversation.truncation import Outcome, truncate
from posttrain.data import preparation
from posttrain.data.ledger import Ledger
from posttrain.data.records import Columns
from posttrain.data.sources import open_data
from posttrain.data.splits import content_hash
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import DataError


def row(z: int, q: int, **more: object) -> dict[str, object]:
    return {"prompt": "z" * z, "completion": "Q" * q, **more}


def row_lists(data: TokenizedDataset) -> list[tuple[list[int], list[bool]]]:
    rows = [data.row(index) for index in range(len(data))]
    return [(ids.tolist(), trained.tolist()) for ids, trained in rows]


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch):
    """Encode two records per batch."""
    monkeypatch.setattr(preparation, "_BATCH", 2)


RECORDS = st.lists(
    st.builds(row, st.integers(1, 12), st.integers(1, 12), weight=st.sampled_from([0.5, 1, 2]))
    | st.just({"prompt": "no answer"}),
    min_size=1,
    max_size=9,
)


def at_once(path: Path, chat: ChatConfig, tokenizer) -> tuple[list[TokenRow], list[tuple], Ledger]:
    """The reference: read every record, then encode and truncate every row, all in memory."""
    records = open_data(path, Columns()).read("skip", require_answer=True)
    encoder = conversation_encoder(chat, tokenizer)
    ledger = Ledger("d", records=len(records.records) + len(records.faults), bad=len(records.faults))
    ledger.faults = records.faults
    rows, described = [], []
    for record, whole in zip(
        records.records, encoder.rows([each.conversation for each in records.records]), strict=True
    ):
        short, outcome = truncate(whole, chat.max_length, chat.truncation)
        if short is not None and short.trained[0]:
            short = TokenRow(short.ids, [False, *short.trained[1:]])
            short, outcome = (short, outcome) if any(short.trained) else (None, Outcome.NOTHING_TRAINED)
        if short is None:
            ledger.drop("too long" if outcome is Outcome.DROPPED_TOO_LONG else "nothing to train")
            continue
        ledger.cut_left += outcome is Outcome.CUT_LEFT
        ledger.cut_right += outcome in (Outcome.CUT_RIGHT, Outcome.CUT_ANSWER)
        ledger.answers += trained_ends(whole, encoder.end_ids)
        ledger.answers_with_end += trained_ends(short, encoder.end_ids)
        rows.append(short)
        described.append((record.line, record.weight, content_hash(record.conversation)))
    ledger.rows = len(rows)
    ledger.tokens = sum(len(each.ids) for each in rows)
    ledger.trained_tokens = sum(sum(each.trained) for each in rows)
    ledger.longest = max((len(each.ids) for each in rows), default=0)
    weights = [weight for _, weight, _ in described]
    ledger.weights = [min(weights), max(weights)] if weights else []
    return rows, described, ledger


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(records=RECORDS, policy=st.sampled_from(["drop", "left", "right"]), max_length=st.integers(8, 30))
def test_rows_in_pieces_are_the_rows_at_once(
    records, policy, max_length: int, in_pieces, prepare, tmp_path: Path, tiny_tokenizer
):
    chat = {"max_length": max_length, "truncation": policy, "min_end_tokens_kept": 0.0}
    try:
        found = prepare(records, on_bad_record="skip", **chat)
    except DataError as error:
        assert "no usable one" in str(error) or "no trained tokens remain" in str(error)
        return
    rows, described, ledger = at_once(tmp_path / "rows.jsonl", ChatConfig(**chat), tiny_tokenizer)
    assert row_lists(found) == [(each.ids, each.trained) for each in rows]
    assert list(zip(found.lines, found.weights, found.contents, strict=True)) == described
    assert found.ledger == ledger


def test_bad_records_are_told_before_a_row_that_is_too_long(prepare, in_pieces):
    long, bad = row(20, 20), {"prompt": "no answer"}
    records = [long, *[row(1, 1)] * 5, bad, row(1, 1), bad]
    with pytest.raises(DataError) as refused:
        prepare(records, max_length=24, truncation="error")
    assert "rows.jsonl has 2 bad records:" in str(refused.value)
    with pytest.raises(DataError, match=r"datasets\.d: line 1: a conversation has 50 tokens, the limit is 24"):
        prepare(records, max_length=24, truncation="error", on_bad_record="skip")


def test_a_renamed_column_that_is_nowhere_is_told_before_a_row_that_is_too_long(prepare, in_pieces):
    with pytest.raises(DataError, match=r"columns\.weight is 'importance', which no record has"):
        prepare([row(20, 20)] * 5, max_length=24, truncation="error", columns=ColumnsConfig(weight="importance"))


@pytest.mark.parametrize("last", [{"prompt": "no answer"}, row(20, 20)], ids=["a bad record", "a row too long"])
def test_data_that_are_refused_in_the_end_leave_nothing_in_the_cache(prepare, in_pieces, own_cache: Path, last):
    with pytest.raises(DataError):
        prepare([*[row(1, 1)] * 5, last], max_length=24, truncation="error")
    assert not any(own_cache.glob("*"))


PEAK = """
import json, sys, tracemalloc
from pathlib import Path
from transformers import AutoTokenizer
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.data.preparation import prepare_dataset

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])

def start(path):
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    data = prepare_dataset("d", DatasetConfig(path=path), ChatConfig(), tokenizer, "error")
    sizes = data.sizes()
    assert sizes.lengths[len(data) - 1] == len(data.row(len(data) - 1)[0])
    return tracemalloc.get_traced_memory()[1] - before, len(data)

start(sys.argv[2])  # whatever is imported or remembered at the first use
tracemalloc.start()
print(json.dumps([[start(path) for _ in range(2)] for path in sys.argv[2:]]))
"""


def test_memory_does_not_grow_with_rows_neither_to_prepare_them_nor_to_find_them_again(
    tmp_path: Path, write_jsonl, tiny_model: Path
):
    # Tracing is the slow part: two seconds for 12,000 rows.
    sizes = {"few": 3_000, "many": 12_000}
    files = [write_jsonl(tmp_path / f"{name}.jsonl", _rows(count)) for name, count in sizes.items()]
    environment = {**os.environ, "POSTTRAIN_TOOLKIT_CACHE": str(tmp_path / "cache")}
    warm_up = write_jsonl(tmp_path / "warm_up.jsonl", _rows(2_100))
    command = [sys.executable, "-c", PEAK, str(tiny_model), str(warm_up), *map(str, files)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    _, (few_cold, few_warm), (many_cold, many_warm) = json.loads(ran.stdout)
    assert [few_cold[1], many_cold[1]] == [3_000, 12_000]
    # Bytes per additional row; holding all rows in memory would take thousands.
    assert (many_cold[0] - few_cold[0]) / 9_000 < 32
    assert (many_warm[0] - few_warm[0]) / 9_000 < 1


def _rows(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"What is {n} and {n % 7}?", "completion": f"It is {n + n % 7}, I think."} for n in range(count)]
