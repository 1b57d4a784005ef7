"""Addresses are told from paths, carry no secrets, and are read, once, from a web server."""

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from posttrain.config.load import load_config
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.data.preparation import prepare_dataset
from posttrain.data.readers.copies import local_copy
from posttrain.data.readers.data_files import find_remote
from posttrain.data.readers.open import is_quick_to_open, open_lines, place_in
from posttrain.data.readers.remote import listed
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("zz://rows/a.jsonl", "zz://rows/a.jsonl cannot be read: Protocol not known: zz"),
        ("file:///tmp/a.jsonl", "file://tmp/a.jsonl is a file of this machine; give its path"),
        ("http://127.0.0.1:1/a.jsonl", "http://127.0.0.1:1/a.jsonl: the store cannot be reached: "),
        ("adl://rows/a.jsonl", "adl://rows/a.jsonl cannot be read: Install adlfs to access Azure Datalake Gen1"),
        ("s3://me:my-password@rows/a.jsonl", "s3://…: the address has a user or password"),
        ("https://host/a.jsonl?signature=my-password", "https://…: the address has a query, which may be a signature"),
    ],
)
def test_an_address_that_cannot_be_read_is_one_message(address: str, message: str):
    with pytest.raises(DataError) as raised:
        open_lines(address, None)

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value) and "my-password" not in str(raised.value)


@pytest.mark.parametrize("path", ["s3://me:my-password@rows/a.jsonl", "https://host/a.jsonl?key=my-password"])
def test_a_config_refuses_an_address_with_a_secret_and_does_not_repeat_it(path, tmp_path):
    config = tmp_path / "rows.yaml"
    config.write_text(f"path: {path}\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"rows.yaml:1: path: the address has a") as raised:
        load_config(config, DatasetConfig)

    assert "my-password" not in str(raised.value)


@pytest.mark.parametrize("path", ["s3://rows/a.jsonl", "hf://datasets/owner/name@main/a.jsonl", "gs://rows/*.parquet"])
def test_a_config_keeps_an_address_as_it_is(path):
    assert DatasetConfig(path=path).path == path


def test_a_store_is_not_asked_before_it_must_be():
    assert not is_quick_to_open("s3://rows/no-such-file.jsonl")


@pytest.fixture
def web(tmp_path: Path, own_cache: Path) -> Iterator[str]:
    """The address of a web server for the folder `web` of the test."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    (tmp_path / "web").mkdir()
    listed.cache_clear()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: Quiet(*args, directory=str(tmp_path / "web"))
    )
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def numbers(name: str) -> list[object]:
    return [line.value and line.value["n"] for line in open_lines(name, {"n"}).lines()]


def test_a_file_of_a_web_server_is_downloaded_once_and_named_by_its_address(web: str, tmp_path: Path, capsys):
    rows, url = tmp_path / "web" / "rows.jsonl", f"{web}/rows.jsonl"
    rows.write_text('{"n": 7}\n{"n": 8}\n', encoding="utf-8")

    assert numbers(url) == numbers(url) == [7, 8]
    assert open_lines(url, {"n"}).digest == open_lines(rows, {"n"}).digest
    assert place_in(url, 2) == f"{url}:2"
    assert capsys.readouterr().err.count(f"downloading {url} (0.0 MiB)") == 1


def test_a_file_that_has_changed_is_told_and_read_anew(web: str, tmp_path: Path, capsys):
    rows, url = tmp_path / "web" / "rows.jsonl", f"{web}/rows.jsonl"
    rows.write_text('{"n": 7}\n', encoding="utf-8")
    (old,) = find_remote(url).files
    assert numbers(url) == [7]
    rows.write_text('{"n": 8}\n', encoding="utf-8")
    os.utime(rows, (0, 0))
    listed.cache_clear()

    assert numbers(url) == [8]
    assert f"{url} has changed since it was last read" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"rows.jsonl was changed while it was downloaded; start again"):
        local_copy(old)


def test_a_missing_file_of_a_web_server_is_told(web: str):
    with pytest.raises(DataError, match=r"none.jsonl: the store has no such file"):
        numbers(f"{web}/none.jsonl")


def test_tokenised_rows_need_no_copy_where_the_format_is_named(web: str, tmp_path: Path, tiny_tokenizer):
    rows, url = tmp_path / "web" / "rows.jsonl", f"{web}/rows.jsonl"
    rows.write_text('{"prompt": "1 + 1?", "completion": "2"}\n', encoding="utf-8")
    copies = tmp_path / "cache" / "remote"

    def prepared(format_: Literal["auto", "columns"]) -> TokenizedDataset:
        return prepare_dataset("d", DatasetConfig(path=url, format=format_), ChatConfig(), tiny_tokenizer, "error")

    first = prepared("auto")
    for copy in copies.rglob("rows.jsonl"):
        copy.unlink()
    assert prepared("columns").token_digest() == first.token_digest()
    assert not any(copies.rglob("rows.jsonl"))
    prepared("auto")
    assert any(copies.rglob("rows.jsonl"))
