"""Configs for doctors to look at, and folders with the metadata of packages."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.load import load_config
from posttrain.data.config_kind import config_kind
from posttrain.doctor.doctor import CONFIGS
from posttrain.doctor.findings import Asked

Write = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`install(name, version, requires=[...])` puts a package's metadata first on the path, as pip lays it out."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def write(name: str, version: str, requires: tuple[str, ...] = ()) -> Path:
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        sys.path_importer_cache.pop(str(site), None)
        return site

    return write


@pytest.fixture
def asked(tmp_path: Path, tiny_model: Path) -> Callable[..., Asked]:
    """`asked(section=...)` is about a config of toolkit-sft for the tiny model, with these sections replaced."""

    def write(**sections: Any) -> Asked:
        (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
        config = {
            "model": {"name": str(tiny_model)},
            "datasets": {"rows": {"path": "rows.jsonl"}},
            "stages": [{"name": "one", "until_step": 2, "mix": {"rows": 1}}],
            **sections,
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(config))
        kind = config_kind(path)
        return Asked(path, kind, load_config(path, CONFIGS[kind]))

    return write
