"""Preference data prepared in batches is the same as prepared all at once, in bounded memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.sections.chat import ChatConfig
from posttrain.data import bad_records, preparation
from posttrain.data.bad_records import Refused
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.config.data import LabelledAnswers, PairsDataset
from posttrain.dpo.data import Policies, prepare_preferences
from posttrain.dpo.datasets import LabelledDataset, PairedDataset
from posttrain.errors import DataError


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_jsonl, tiny_model: Path):
    """`prepare(rows, at_once)` prepares the rows as pairs, `at_once` records at a time, in a separate cache."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def call(rows: list[dict[str, Any]], at_once: int = 2, *, labelled: bool = False, **options: Any) -> Any:
        monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / f"cache-{at_once}"))
        monkeypatch.setattr(preparation, "_BATCH", at_once)
        path = str(write_jsonl(tmp_path / "rows.jsonl", rows))
        chat = ChatConfig(**{"max_length": 24, "truncation": "left", **options.pop("chat", {})})
        policies = Policies(chat, options.pop("on_bad_record", "skip"), options.pop("on_useless_pair", "drop"), seed=3)
        config = LabelledAnswers(type="labelled", path=path) if labelled else PairsDataset(path=path, **options)
        return prepare_preferences("d", config, policies, tokenizer)

    return call


def pair(z: int, chosen: int, rejected: int) -> dict[str, Any]:
    return {"prompt": "z" * z, "chosen": "Q" * chosen, "rejected": "Q" * rejected}


MIXED = [
    pair(2, 3, 4),
    pair(10, 4, 9),  # 24 and 29 tokens, so both lose five
    {"prompt": "z"},
    pair(1, 2, 2),
    pair(3, 1, 0),
    pair(20, 4, 1),
    pair(1, 1, 2),
    pair(1, 30, 2),  # an answer that does not fit
    pair(4, 2, 5),
]


def row_lists(side: TokenizedDataset) -> list[tuple[list[int], list[bool], int]]:
    rows = [side.row(row) for row in range(len(side))]
    return [(ids.tolist(), trained.tolist(), int(line)) for (ids, trained), line in zip(rows, side.lines, strict=True)]


def test_pairs_in_pieces_are_the_pairs_at_once(prepare):
    pieces, whole = prepare(MIXED, 2), prepare(MIXED, 100)
    assert isinstance(pieces, PairedDataset)
    for side in ("chosen", "rejected"):
        assert row_lists(getattr(pieces, side)) == row_lists(getattr(whole, side))
    assert pieces.ledger == whole.ledger
    assert pieces.rows_digest() == whole.rows_digest()
    counted = {key: value for key, value in pieces.ledger.as_dict().items() if key not in ("name", "faults")}
    # Lines 1, 2, 6, 7 and 9 are kept: 15 + 16, 19 + 24, 24 + 21 (cut by ten), 12 + 13 and 16 + 19 tokens.
    assert pieces.chosen.lines.tolist() == [1, 2, 6, 7, 9]
    assert counted["dropped"] == {"identical answers": 1, "empty answer": 1, "too long": 1}
    assert (counted["records"], counted["bad"], counted["rows"], counted["cut_left"]) == (9, 1, 5, 2)
    assert (counted["answers"], counted["answers_with_end"]) == (10, 10)


def test_ends_that_are_cut_off_are_counted_in_every_piece(prepare):
    data = prepare(MIXED, 2, chat={"truncation": "right", "min_end_tokens_kept": 0.5})
    # At 24 tokens, lines 2 and 8 lose one end each; line 6 is dropped, as its prompt alone has 28.
    assert data.chosen.lines.tolist() == [1, 2, 7, 8, 9]
    assert (data.ledger.answers, data.ledger.answers_with_end) == (10, 8)
    assert data.ledger.dropped["prompt too long"] == 1


def test_samples_are_drawn_over_all_pieces(prepare):
    rows = [pair(number, 1, 2) for number in range(1, 10)]
    rows.insert(4, pair(1, 1, 1))
    found = [prepare(rows, at_once, n_samples=4) for at_once in (2, 3, 100)]
    assert len({tuple(data.chosen.lines.tolist()) for data in found}) == 1
    assert len(found[0]) == 4
    assert found[0].ledger.dropped == {"identical answers": 1, "not drawn (n_samples)": 5}
    assert found[0].ledger.records == 10


def test_labelled_answers_in_pieces_are_those_at_once(prepare):
    rows = [{"prompt": "z" * n, "completion": "Q" * n, "label": n % 3 == 0} for n in range(1, 8)]
    pieces, whole = (prepare(rows, at_once, labelled=True) for at_once in (2, 100))
    assert isinstance(pieces, LabelledDataset)
    assert pieces.desirable.tolist() == [True] * 2 + [False] * 5
    assert pieces.completions.lines.tolist() == [3, 6, 1, 2, 4, 5, 7]
    assert row_lists(pieces.completions) == row_lists(whole.completions)
    assert pieces.ledger == whole.ledger


def test_bad_records_and_then_useless_ones_are_told_before_a_pair_that_is_too_long(prepare):
    rows = [pair(1, 30, 2), pair(1, 1, 2), pair(1, 1, 2), pair(1, 1, 1), {"prompt": "z"}]
    told = []
    for policies in (
        {"on_bad_record": "error", "on_useless_pair": "error"},
        {"on_bad_record": "skip", "on_useless_pair": "error"},
        {"on_bad_record": "skip", "on_useless_pair": "drop"},
    ):
        with pytest.raises(DataError) as refusal:
            prepare(rows, chat={"truncation": "error"}, **policies)
        told.append(str(refusal.value).splitlines()[0].partition("rows.jsonl")[2] or str(refusal.value))
    assert told[:2] == [" has 1 bad record:", ": 1 record from which nothing can be learnt:"]
    assert told[2].startswith("datasets.d: line 1: prompt and answer have 41 tokens, the limit is 24")


def test_of_very_many_records_the_lines_of_the_first_are_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bad_records, "_LISTED_LINES", 23)
    many = Refused()
    for line in range(1, 31):
        many.add(f"f:{line}", f"wrong {line}", str(line))
    assert (many.count, len(many.shown)) == (30, 20)
    assert "... and 10 more, in lines 21, 22, 23, ...\n" in str(many.as_bad("f", 1))
    assert "... and 10 more, in lines 21, 22, 23, ...\n" in str(many.as_useless("f", 1))


PEAK = """
import json, sys, tracemalloc
from transformers import AutoTokenizer
from posttrain.config.sections.chat import ChatConfig
from posttrain.dpo.config.data import PairsDataset
from posttrain.dpo.data import Policies, prepare_preferences

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
policies = Policies(ChatConfig(), "error", "drop", seed=0)

def start(path):
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    data = prepare_preferences("d", PairsDataset(path=path), policies, tokenizer)
    data.rows_digest(), data.sizes()
    return tracemalloc.get_traced_memory()[1] - before, len(data)

start(sys.argv[2])  # whatever is imported or remembered at the first use
tracemalloc.start()
print(json.dumps([[start(path) for _ in range(2)] for path in sys.argv[2:]]))
"""


def test_memory_grows_with_pairs_by_an_index_at_most(tmp_path: Path, write_jsonl, tiny_model: Path):
    files = []
    for count in (2_100, 3_000, 8_000):
        rows = [
            {"prompt": f"What is {n}?", "chosen": f"It is {n}.", "rejected": "I do not know."} for n in range(count)
        ]
        files.append(str(write_jsonl(tmp_path / f"{count}.jsonl", rows)))
    environment = {**os.environ, "POSTTRAIN_TOOLKIT_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PEAK, str(tiny_model), *files]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    _, (few_cold, few_warm), (many_cold, many_warm) = json.loads(ran.stdout)
    assert [few_cold[1], many_cold[1]] == [3_000, 8_000]
    # Bytes per added pair: keeping all pairs in memory would take thousands.
    assert (many_cold[0] - few_cold[0]) / 5_000 < 48
    assert (many_warm[0] - few_warm[0]) / 5_000 < 48
