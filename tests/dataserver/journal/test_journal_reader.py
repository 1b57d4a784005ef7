"""Rows are read in order, filtered, and a page at a time."""

import pytest
from journal_rows import rewarded, row
from sqlalchemy import Engine

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.reader import JournalReader, RowFilter
from posttrain.dataserver.journal.writer import JournalWriter


@pytest.fixture
def filled(writer: JournalWriter, reader: JournalReader) -> JournalReader:
    """1202 rows: two runs of 600 iterations with mixed data sets and statuses, and two validation rows."""
    rows = [
        row(
            number,
            run_id="a" if number < 600 else "b",
            iteration=number % 600,
            dataset="words" if number % 3 == 0 else "sums",
            status="error" if number % 100 == 99 else "ok",
            reward=None if number % 100 == 99 else 0.5,
        )
        for number in range(1200)
    ]
    writer.add_durable([*rows, *rewarded(1.0, 0.0, split="validation", request_id="v", run_id="a", iteration=7)])
    return reader


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        (RowFilter(run_id="b", first_iteration=10, last_iteration=12), [610, 611, 612]),
        (RowFilter(dataset="words", last_iteration=3), [0, 3, 600, 603]),
        (RowFilter(status="error"), list(range(99, 1200, 100))),
        (RowFilter(run_id="a", dataset="sums", status="error", first_iteration=200), [299, 499, 599]),
        (RowFilter(run_id="a", split="train", last_iteration=599), list(range(600))),
        (RowFilter(run_id="c"), []),
    ],
)
def test_a_filter_passes_the_rows_that_it_describes(chosen: RowFilter, numbers: list[int], filled: JournalReader):
    assert [stored.request_id for stored in filled.rows(chosen)] == [f"q{number}" for number in numbers]


def test_all_rows_come_once_and_the_oldest_first(filled: JournalReader):
    ids = [stored.id for stored in filled.rows(RowFilter())]
    assert len(ids) == 1202
    assert ids == sorted(set(ids))


def test_validation_rows_are_told_from_training_rows(filled: JournalReader):
    assert [stored.reward for stored in filled.rows(RowFilter(split="validation"))] == [1.0, 0.0]


def test_rows_that_come_while_others_are_read_do_not_disturb(filled: JournalReader, writer: JournalWriter):
    reading = filled.rows(RowFilter(run_id="b"))
    first = next(reading)
    writer.add_durable([row(5000, run_id="b"), row(5001, run_id="a")])
    assert [first.request_id, *(stored.request_id for stored in reading)] == [
        *(f"q{number}" for number in range(600, 1200)),
        "q5000",
    ]


def test_pages_go_from_the_newest_row_to_the_oldest_without_gaps(filled: JournalReader):
    chosen = RowFilter(run_id="b", dataset="words")
    pages, before = [], None
    while page := filled.page(chosen, limit=30, before=before):
        pages.append(page)
        before = page[-1].id
    assert [len(page) for page in pages] == [30] * 6 + [20]
    assert [excerpt.iteration for page in pages for excerpt in page] == list(range(597, -1, -3))


def test_a_page_has_the_beginning_of_the_texts_and_the_row_has_all(writer: JournalWriter, reader: JournalReader):
    writer.add_durable([row(prompt="p" * 1000, completion="é" * 1000)])
    (excerpt,) = reader.page(RowFilter(), limit=10)
    assert (excerpt.prompt, excerpt.completion) == ("p" * 240, "é" * 240)
    stored = reader.row(excerpt.id)
    assert stored is not None and stored.completion == "é" * 1000
    assert reader.row(excerpt.id + 1) is None


def test_a_row_that_got_its_reward_later_keeps_its_place(engine: Engine, config: JournalConfig, reader: JournalReader):
    writer = JournalWriter(engine, config)
    writer.add_durable([row(0, status="error", reward=None), row(1)])
    writer.add_durable([row(0, status="ok", reward=1.0)])
    assert [stored.request_id for stored in reader.rows(RowFilter(status="ok"))] == ["q0", "q1"]
    writer.close()


def test_a_run_is_found_by_the_name_that_its_trainer_gave_it(writer: JournalWriter, reader: JournalReader):
    name = "a\0b\ud800'%"
    writer.add_durable([row(run_id=name)])
    assert len(reader.page(RowFilter(run_id=name), limit=10)) == 1
