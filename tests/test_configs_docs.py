"""docs/configs.md: its files load as they stand, and a run's config says of them what the page says."""

import re
from pathlib import Path

from typer.testing import CliRunner

from posttrain.cli.sft import main
from posttrain.config.dump import to_yaml
from posttrain.config.extends import MOST_FILES
from posttrain.config.load import load_config
from posttrain.sft.config import SFTConfig

PAGE = (Path(__file__).parent.parent / "docs" / "configs.md").read_text(encoding="utf-8")


def test_the_files_of_the_page_load_and_the_dump_has_the_comments_of_the_page(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(f"# {name}\n{text}")
    config = load_config(Path("longer.yaml"), SFTConfig)
    assert config.datasets["facts"].path == str(tmp_path / "shared/facts.jsonl")
    [shown] = re.findall(r"```\n(training:\n.*?)```", PAGE, re.DOTALL)
    dump = to_yaml(config)
    for line in shown.splitlines():
        assert f"{line}\n" in dump
    assert f"may extend others, {MOST_FILES} in all" in PAGE


def test_the_options_of_the_page_are_there() -> None:
    shown = CliRunner().invoke(main, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    table = PAGE.partition("| option |")[2].partition("\n\n")[0]
    for option in set(re.findall(r"--[a-z][a-z-]+", table)) - {"--output"}:
        assert f"{option} " in shown, option
