"""Data and caches that are or contain pickles are refused or rebuilt, and never unpickled."""

import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pickle_traps import KINDS, array_pickle, plain_pickle, torch_pickle

from dataserver.serving import a_config
from dpo.dpo_runs import write_run as write_dpo_run
from posttrain.config.load import load_config
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.data.sources import RecordSet, open_source
from posttrain.data.token_arrays import mapped_array
from posttrain.errors import DataError
from posttrain.models.load import choose_backend
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import SFTData, prepare_data
from running import BIN
from sft.small_sft import write_sft_run


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """The file that a trap creates."""
    return tmp_path / "sprung"


def read(path: Path | str) -> RecordSet:
    return open_source(DatasetConfig(path=str(path))).read("skip", require_answer=True)


@pytest.mark.parametrize("name", ["rows.pkl", "rows.pickle", "rows.npy", "rows.pt", "rows.joblib", "rows.bin"])
def test_data_that_are_a_pickle_by_their_name_are_refused(tmp_path: Path, sprung: Path, name: str) -> None:
    (tmp_path / name).write_bytes(plain_pickle(sprung))

    with pytest.raises(DataError, match=r"cannot tell the format from the name; supported: .*jsonl"):
        read(tmp_path / name)

    assert not sprung.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.tsv", "rows.parquet", "rows.jsonl.gz"])
def test_data_that_are_a_pickle_under_another_name_are_refused(
    tmp_path: Path, sprung: Path, name: str, kind: str
) -> None:
    (tmp_path / name).write_bytes(KINDS[kind](sprung))

    with pytest.raises(DataError, match=r"rows\."):
        read(tmp_path / name)

    assert not sprung.exists()


def test_of_a_saved_data_set_only_the_tables_are_read(
    tmp_path: Path, sprung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under a name that could be a hub repository, with a loading script that older `datasets` versions ran."""
    from datasets import Dataset

    folder = tmp_path / "owner" / "name"
    Dataset.from_dict({"prompt": ["a"], "completion": ["b"]}).save_to_disk(folder)
    (folder / "name.py").write_text(f"open({str(sprung)!r}, 'w')")
    (folder / "rows.pkl").write_bytes(plain_pickle(sprung))
    monkeypatch.chdir(tmp_path)

    for name in (folder, "owner/name", "./owner/name"):
        assert len(read(name).records) == 1

    assert not sprung.exists()


def test_a_column_of_parquet_that_says_it_is_a_python_object_is_not_unpickled(tmp_path: Path, sprung: Path) -> None:
    """As in CVE-2023-47248: an extension type whose metadata is a pickle."""
    pickled = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": plain_pickle(sprung),
    }
    fields = [pa.field(name, pa.string(), metadata=pickled) for name in ("prompt", "completion")]
    rows = pa.table({"prompt": ["a"], "completion": ["b"]}).cast(pa.schema(fields))
    pq.write_table(rows, tmp_path / "rows.parquet")

    read(tmp_path / "rows.parquet")

    assert not sprung.exists()


def test_an_array_of_objects_is_no_array_of_ours(tmp_path: Path, sprung: Path) -> None:
    (tmp_path / "ids.npy").write_bytes(array_pickle(sprung))

    with pytest.raises(ValueError, match=r"Object arrays cannot be loaded|Python objects in dtype"):
        mapped_array(tmp_path / "ids.npy")

    assert not sprung.exists()


def fill_with_traps(cache: Path, sprung: Path) -> int:
    """Replace every array in a cache by a pickle and put more pickles beside it; returns the number of arrays."""
    arrays = list(cache.rglob("*.npy"))
    for array in arrays:
        array.write_bytes(array_pickle(sprung))
        for name in ("model.pt", "rows.pkl", "__init__.py", "data.joblib"):
            (array.parent / name).write_bytes(torch_pickle(sprung))
    return len(arrays)


def test_a_cache_of_tokens_with_pickles_in_it_is_made_anew(
    tmp_path: Path, tiny_model: Path, sprung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    config = load_config(write_sft_run(tmp_path, tiny_model), SFTConfig)
    tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=True)

    def prepared() -> SFTData:
        return prepare_data(config, tokenizer, lambda line: None)

    before = [dataset.token_digest() for dataset in prepared().datasets.values()]
    assert fill_with_traps(tmp_path / "cache", sprung) >= 20

    assert [dataset.token_digest() for dataset in prepared().datasets.values()] == before
    assert not sprung.exists()
    kept = [np.load(path) for path in (tmp_path / "cache").rglob("*.npy")]
    assert not any(array.dtype.hasobject for array in kept)


def test_a_cache_of_rows_with_pickles_in_it_is_made_anew(
    tmp_path: Path, sprung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    config = a_config(tmp_path / "config")

    def planned() -> subprocess.CompletedProcess[str]:
        command = [BIN / "toolkit-rl-dataserver", config, "--dry-run"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert planned().returncode == 0
    assert fill_with_traps(tmp_path / "cache", sprung) == 6

    again = planned()

    assert again.returncode == 0, again.stderr
    assert "reading " in again.stdout + again.stderr
    assert not sprung.exists()


@pytest.mark.long
def test_kept_scores_of_a_reference_with_pickles_in_them_are_computed_anew(
    tmp_path: Path, tiny_model: Path, sprung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    config = write_dpo_run(tmp_path, tiny_model)

    def train(name: str) -> subprocess.CompletedProcess[str]:
        command = [BIN / "toolkit-dpo", config, "--run-name", name]
        return subprocess.run(command, capture_output=True, text=True, timeout=200)

    assert train("one").returncode == 0
    assert fill_with_traps(tmp_path / "cache", sprung) > 0
    again = train("two")

    assert again.returncode == 0, again.stderr
    assert not sprung.exists()
