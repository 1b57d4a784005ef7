"""Write down what a run is made of, at its start and at each resume."""

import json
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from toolkit.core.config.dump import to_yaml
from toolkit.core.files import atomic_write_text
from toolkit.core.ledger import Ledger
from toolkit.core.runs.directory import RunDirectory
from toolkit.core.runs.manifest import describe_run


def write_description(
    run: RunDirectory, command: str, config: BaseModel, identity: dict[str, Any], ledgers: list[Ledger]
) -> None:
    """Write config.yaml, manifest.json and ledger.json; a manifest that is there keeps its start."""
    atomic_write_text(run.config, to_yaml(config))
    manifest = describe_run(identity, command)
    if run.manifest.is_file():
        earlier = json.loads(run.manifest.read_text(encoding="utf-8"))
        resumed = [*earlier.get("resumed", []), datetime.now(UTC).isoformat(timespec="seconds")]
        manifest = {**manifest, "started": earlier["started"], "resumed": resumed}
    run.write_json(run.manifest, manifest)
    run.write_json(run.ledger, [ledger.as_dict() for ledger in ledgers])
