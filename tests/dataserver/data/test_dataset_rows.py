"""Rows are parsed from their file once, then served from a cache that is complete or absent."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataserver.dataserver_cases import load, make_config, questions, write_rows
from posttrain.base.cache import cache_dir
from posttrain.dataserver.data.dataset_rows import FileRows, PromptFacts, RowFault, RowWriter
from posttrain.dataserver.data.loading import load_datasets
from posttrain.dataserver.data.samples import Samples
from posttrain.dataserver.data.sampling import Sampler, split_rows
from posttrain.dataserver.grading.questions import graders_in_use
from posttrain.dataserver.runtime import config_id
from posttrain.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private cache; returns its rows folder."""
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rows"


def write_folder(folder: Path, rows: Sequence[Mapping[str, Any]], lines: Sequence[int]) -> FileRows:
    writer = RowWriter()
    for line, row in zip(lines, rows, strict=True):
        writer.add(line, row, PromptFacts(line * 7, line, line))
    folder.mkdir()
    writer.write(folder, [RowFault(3, "bad")])
    return FileRows(folder, lambda line: f"rows.jsonl:{line}")


def test_a_row_is_found_by_its_line_and_by_nothing_else(tmp_path: Path) -> None:
    rows = write_folder(tmp_path / "rows", questions("sums", 3), [1, 2, 5])
    assert [rows.find(key) for key in ("1", "2", "5")] == [0, 1, 2]
    wrong = ["", "0", "3", "6", "-1", "+1", "01", "1.0", " 1", "٢", "1" * 18, "1" * 5000, "x", "1:2"]
    assert [rows.find(key) for key in wrong] == [None] * len(wrong)
    assert [rows.place(index) for index in range(3)] == ["rows.jsonl:1", "rows.jsonl:2", "rows.jsonl:5"]
    assert rows.faults == ["rows.jsonl:3: bad"]
    assert [int(content) for content in rows.contents()] == [7, 14, 35]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    rows=st.lists(st.dictionaries(st.text(), _JSON, max_size=4), min_size=1, max_size=5),
    half=st.text(st.characters(categories=["Cs"]), max_size=1),
)
def test_any_json_comes_out_as_it_went_in(rows: list[dict[str, Any]], half: str) -> None:
    rows[0]["half a character"] = half
    with tempfile.TemporaryDirectory() as folder:
        kept = write_folder(Path(folder, "rows"), rows, range(1, len(rows) + 1))
        assert [dict(kept.read(index).record) for index in range(len(kept))] == rows


def test_equal_rows_have_equal_digests_and_others_do_not(tmp_path: Path) -> None:
    rows = [*questions("sums", 50), *questions("sums", 50)]
    kept = write_folder(tmp_path / "rows", rows, range(1, 101))
    digests = [kept.read(index).digest for index in range(100)]
    assert digests[:50] == digests[50:]
    assert len(set(digests)) == 50


def test_another_line_number_is_another_digest_of_the_file(tmp_path: Path) -> None:
    """A sample id contains the line number, so an extra blank line would make it name another row."""
    first = write_rows(tmp_path / "first.jsonl", questions("sums", 3))
    (tmp_path / "second.jsonl").write_text("\n" + first.read_text())
    (tmp_path / "third.jsonl").write_text(first.read_text() + "\n")
    digests = [load(tmp_path / f"{name}.jsonl").digest for name in ("first", "second", "third")]
    assert digests[0] != digests[1]
    assert digests[0] == digests[2]


def test_a_second_start_reads_no_record(tmp_path: Path, cache: Path) -> None:
    file = write_rows(tmp_path / "sums.jsonl", questions("sums", 3))
    told: list[str] = []
    load(file, report=told.append)
    (kept,) = cache.glob("*/rows.jsonl")
    kept.write_bytes(kept.read_bytes().replace(b"sums 1", b"SUMS 1"))
    assert load(file, report=told.append).read(1).record["prompt"] == "SUMS 1"
    assert told == [f"reading {file}"]


def test_a_second_start_is_much_faster(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "sums.jsonl", questions("sums", 20_000))
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        load(file)
        seconds.append(time.perf_counter() - begin)
    assert seconds[1] < seconds[0] / 5


@pytest.mark.parametrize(
    "change",
    [
        {"columns": {"prompt": "other"}},
        {"gold": {"column": "other"}},
        {"gold": {"extract": "last_number"}},
        {"gold": None},
    ],
)
def test_a_file_that_is_read_in_another_way_is_read_anew(change: dict[str, Any], tmp_path: Path) -> None:
    file = write_rows(tmp_path / "sums.jsonl", [{**row, "other": "1"} for row in questions("sums", 3)])
    told: list[str] = []
    load(file, report=told.append)
    load(file, report=told.append, **change)
    assert told == [f"reading {file}"] * 2


def test_a_half_written_folder_is_made_anew(tmp_path: Path, cache: Path) -> None:
    file = write_rows(tmp_path / "sums.jsonl", questions("sums", 3))
    load(file)
    (folder,) = cache.iterdir()
    # rows.json is written last, and the folder is renamed once complete: after a kill, neither has happened.
    (folder / "rows.json").unlink()
    (folder / "rows.jsonl").write_bytes(b'{"prompt": "su')
    aside = cache / f".{folder.name[:40]}.0123456789abcdef.tmp"
    aside.mkdir()
    (aside / "rows.json").write_text("{")
    rows = load(file)
    assert [rows.read(index).record for index in range(3)] == questions("sums", 3)
    assert (folder / "rows.json").is_file()


_PREPARE = """
import sys, time
from pathlib import Path
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.loading import load_rows
file, begin = Path(sys.argv[1]), float(sys.argv[2])
time.sleep(max(0, begin - time.time()))
rows = load_rows(FileDataset(path=file.name, graders={"x": 1}), file.parent, "error", lambda line: print("read"))
print(rows.digest, len(rows), rows.read(1999).record["prompt"])
"""


def test_processes_that_prepare_one_file_at_once_do_not_disturb_each_other(tmp_path: Path, cache: Path) -> None:
    file = write_rows(tmp_path / "sums.jsonl", questions("sums", 2000))
    begin = str(time.time() + 2)
    processes = [
        subprocess.Popen([sys.executable, "-c", _PREPARE, file, begin], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [output[-1].split()[1:] for output in outputs] == [["2000", "sums", "1999"]] * 3
    assert len({output[-1] for output in outputs}) == 1
    (folder,) = cache.iterdir()
    assert json.loads((folder / "rows.json").read_text())["digest"] == outputs[0][-1].split()[0]


def test_a_changed_row_costs_its_own_sample_and_changes_the_identity(tmp_path: Path) -> None:
    rows = questions("sums", 4)
    config = make_config(tmp_path, {"sums": {}}, prompts_per_iteration=4)

    def start() -> tuple[str, Samples, list[str]]:
        write_rows(tmp_path / "sums.jsonl", rows)
        datasets = load_datasets(config, lambda line: None)
        sides = split_rows(config, datasets)
        samples = Samples(config, datasets, sides)
        slots = Sampler(config, sides).slots(0, 0, 4, "train")
        identity = config_id(config, datasets, graders_in_use(config))
        return identity, samples, [samples.sample(slot).sample_id for slot in slots]

    identity, _, ids = start()
    rows[2]["answer"] = "3"
    new_identity, samples, new_ids = start()

    assert new_identity != identity
    (stale,) = set(ids) - set(new_ids)
    assert stale.startswith("sums:3:")
    with pytest.raises(DataError, match=f"the row of sample '{stale}' has changed since it was sampled"):
        samples.target(stale)
    assert [samples.target(other).gold for other in sorted(set(ids) - {stale})] == ["0", "1", "3"]


def test_rows_may_be_read_while_their_folder_is_removed(tmp_path: Path, cache: Path) -> None:
    rows = load(write_rows(tmp_path / "sums.jsonl", questions("sums", 3)))
    (folder,) = cache.iterdir()
    assert cache == cache_dir() / "rows"
    for file in folder.iterdir():
        file.unlink()
    assert rows.read(2).record == questions("sums", 3)[2]
    assert np.array_equal(rows.contents(), rows.contents())
