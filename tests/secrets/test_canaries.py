"""The search for secrets finds them in every encoding, so other tests can rely on it."""

import base64
import gzip
import json
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from canaries import MARKS, SECRETS, files_below, leaks, secrets_in, watched
from hypothesis import given
from hypothesis import strategies as st

TOKEN = SECRETS["HF_TOKEN"]


@pytest.mark.parametrize(
    "written",
    [
        TOKEN,
        json.dumps({"a": [TOKEN]}),
        repr(TOKEN),
        quote(TOKEN, safe=""),
        base64.b64encode(f":{TOKEN}".encode()).decode(),
        base64.b64encode(f"user:{TOKEN}".encode()).decode(),
        base64.urlsafe_b64encode(f"x{TOKEN}".encode()).decode(),
        f"Bearer {TOKEN}",
    ],
    ids=["raw", "json", "python", "url", "basic", "basic with a name", "base64 of urls", "header"],
)
def test_a_secret_is_found_however_it_is_written(written: str) -> None:
    assert secrets_in(f"before {written} after".encode()) == ["HF_TOKEN"]


@given(st.binary(max_size=20), st.binary(max_size=20), st.sampled_from(sorted(MARKS)))
def test_a_secret_is_found_in_base64_wherever_it_lies(before: bytes, after: bytes, name: str) -> None:
    assert name in secrets_in(base64.b64encode(before + SECRETS[name].encode() + after))


def test_half_of_a_secret_is_found_too() -> None:
    half = len(TOKEN) // 2
    assert secrets_in(TOKEN[:half].encode()) == secrets_in(TOKEN[half:].encode()) == ["HF_TOKEN"]


def test_what_is_no_secret_is_not_found() -> None:
    assert secrets_in(b"a canary in a coal mine, HF_TOKEN, " + base64.b64encode(b"canary")) == []


def test_files_are_searched_at_every_depth_and_packed_ones_too(tmp_path: Path) -> None:
    (tmp_path / "a" / ".b").mkdir(parents=True)
    (tmp_path / "a" / ".b" / ".hidden").write_bytes(b"\0" + TOKEN.encode())
    (tmp_path / "log.gz").write_bytes(gzip.compress(TOKEN.encode()))
    (tmp_path / "clean").write_text("nothing")

    assert leaks(files_below(tmp_path)) == [f"{tmp_path}/a/.b/.hidden: HF_TOKEN", f"{tmp_path}/log.gz: HF_TOKEN"]


def test_what_a_process_and_its_children_say_and_are_called_is_searched(tmp_path: Path) -> None:
    child = "import os, sys; print(os.environ['HF_TOKEN'], file=sys.stderr, flush=True); sys.stdin.read()"
    parent = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}, os.environ["JUDGE_AUTH"]], stdin=subprocess.PIPE)
time.sleep(1)
child.communicate()
"""
    ended = watched([sys.executable, "-c", parent], tmp_path)

    assert leaks(ended.places) == ["what it said: HF_TOKEN", "command lines: JUDGE_AUTH"]
