"""Environment variables from a .env file: what is set, what wins, and files that are refused."""

import os
from pathlib import Path

import pytest

from posttrain.base.secrets import without_secrets
from posttrain.cli.env_file import read_env_file
from posttrain.errors import ConfigError

TEXT = """\
# tokens
JUDGE_ENTRY = plainly-written   # a comment
export QUOTED_ENTRY="two words # and ${JUDGE_ENTRY}"
EMPTY_ENTRY=
TAKEN_ENTRY=from-the-file
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("JUDGE_ENTRY", "QUOTED_ENTRY", "EMPTY_ENTRY"):
        os.environ.pop(name, None)
    os.environ["TAKEN_ENTRY"] = "taken-before"


@pytest.mark.usefixtures("environment")
def test_variables_are_set_unless_they_are_already_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(TEXT)
    read_env_file(path)
    assert os.environ["JUDGE_ENTRY"] == "plainly-written"
    assert os.environ["QUOTED_ENTRY"] == "two words # and ${JUDGE_ENTRY}"
    assert os.environ["EMPTY_ENTRY"] == ""
    assert os.environ["TAKEN_ENTRY"] == "taken-before"
    assert without_secrets("plainly-written, taken-before") == "***, ***"


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"JUDGE_ENTRY=hunter2hunter2\nno value\n", "line 2: should be NAME=value, with quotes around odd values"),
        (b"JUDGE_ENTRY\n", "line 1: should be NAME=value"),
        (b"a=\"open\n\nJUDGE_ENTRY='\n", "lines 1, 3: should be NAME=value"),
        (b"JUDGE_ENTRY=a\0b\n", "line 1: should be"),
        (b"JUDGE_ENTRY=\xff\n", "not UTF-8 text; save the file as UTF-8"),
        (b"#" * (1 << 20) + b"##", "larger than 1024 KiB; is this a .env file?"),
    ],
)
def test_a_bad_file_is_refused_without_its_values_and_nothing_is_set(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / ".env"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_env_file(path)
    assert problem in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "JUDGE_ENTRY" not in os.environ


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--env-file: no such file: .*none"):
        read_env_file(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"--env-file: .* is a folder; name a file in it"):
        read_env_file(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here that opens but cannot be read")
def test_a_file_that_cannot_be_read_is_told() -> None:
    with pytest.raises(ConfigError, match=r"--env-file: /proc/self/mem: cannot be read: Input/output error"):
        read_env_file(Path("/proc/self/mem"))
