"""Hugging Face data sets of a dataserver, read by a process of their own.

`datasets` reads `owner/name` from a folder of that name where there is one, so that no hub is needed here.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.refusals import the_one_error
from posttrain.cli.rl_dataserver import main
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.loading import load_datasets
from posttrain.errors import DataError

ROWS = [{"instruction": f"{n} + 1?", "input": "", "output": str(n + 1)} for n in range(3)]


@pytest.fixture
def hub(own_cache, tmp_path: Path, write_jsonl, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    write_jsonl(tmp_path / "owner" / "name" / "train.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


def config(**dataset) -> DataserverConfig:
    rows = {
        "type": "hub",
        "name": "owner/name",
        "gold": {"column": "output"},
        "graders": {"string_exact": 1},
        **dataset,
    }
    return DataserverConfig.model_validate(
        {"datasets": {"sums": rows}, "stages": [{"name": "all", "until_step": 1, "mix": {"sums": 1}}]}
    )


def test_its_rows_are_read_like_a_files(hub: Path) -> None:
    lines: list[str] = []
    rows = load_datasets(config(), lines.append)["sums"]
    assert [rows.read(index).record["output"] for index in range(len(rows))] == ["1", "2", "3"]
    assert rows.read(0).record["messages"][0] == {"role": "user", "content": "0 + 1?"}
    assert any("format: alpaca" in line for line in lines) and any("reading owner/name" in line for line in lines)


def test_a_split_that_is_not_there_is_told_in_one_line(hub: Path) -> None:
    with pytest.raises(DataError, match=r'owner/name cannot be loaded .*Unknown split "test"'):
        load_datasets(config(split="test"), lambda line: None)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("split: train", "2: datasets.sums.name: missing: this key is required"),
        ("name: a.jsonl", "4: datasets.sums.name: should be owner/name or owner/name:subset, found 'a.jsonl'"),
        ("name: 5", "4: datasets.sums.name: should be text, found 5; put it in quotes"),
        ("name: a/b\n    split: ''", "5: datasets.sums.split: should have at least 1 character, found ''"),
        ("name: a/b\n    path: a.jsonl", "5: datasets.sums.path: unknown key; the keys here are: "),
        ("name: no-such-owner/no-such-name", "no-such-name is not a local file, and the Hugging Face hub cannot"),
    ],
    ids=range(6),
)
def test_one_that_is_named_wrongly_is_told_in_one_line(
    keys: str, problem: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("run.yaml").write_text(
        f"datasets:\n  sums:\n    type: hub\n    {keys}\n    graders: {{string_exact: 1}}\n"
        "stages:\n  - {name: all, until_step: 1, mix: {sums: 1}}\n"
    )
    result = CliRunner().invoke(main, ["run.yaml", "--dry-run"])
    assert result.exit_code == 2
    told = the_one_error(result.stderr, result.stdout)
    assert told.startswith(("run.yaml:", "datasets.sums: ")) and problem in told and "\n" not in told


def test_the_server_stays_small(hub: Path) -> None:
    data = config().model_dump(mode="json", include={"datasets", "stages"})
    script = f"""
import sys
from posttrain.cli.rl_dataserver import main
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.loading import load_datasets
assert len(load_datasets(DataserverConfig.model_validate({data!r}), print)["sums"]) == 3
print(sorted({{"datasets", "pyarrow", "pandas", "torch"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
