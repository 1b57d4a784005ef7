"""Write down what a run is made of, at its start and at each resume."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from toolkit.core.config.dump import to_yaml
from toolkit.core.files import atomic_write_text
from toolkit.core.ledger import Ledger
from toolkit.core.runs.directory import RunDirectory
from toolkit.core.runs.manifest import describe_run, read_manifest


def write_description(
    run: RunDirectory, command: str, config: BaseModel, identity: dict[str, Any], ledgers: list[Ledger]
) -> None:
    """Write config.yaml, manifest.json and ledger.json; a manifest that is there keeps its start."""
    manifest = describe_run(identity, command)
    if run.manifest.is_file():
        earlier = read_manifest(run.manifest)
        resumed = [*earlier.get("resumed", []), datetime.now(UTC).isoformat(timespec="seconds")]
        manifest = {**manifest, "started": earlier["started"], "resumed": resumed}
    # First: as long as it is not there, what a kill leaves is not known to be a run's.
    run.write_json(run.manifest, manifest)
    atomic_write_text(run.config, to_yaml(config))
    run.write_json(run.ledger, [ledger.as_dict() for ledger in ledgers])
