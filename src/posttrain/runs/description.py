"""Write down what a run is made of, at its start and at each resume."""

from typing import Any

from pydantic import BaseModel

from posttrain.base.console import console
from posttrain.base.differences import differences
from posttrain.base.files import atomic_write_text
from posttrain.config.dump import to_yaml
from posttrain.data.ledger import Ledger
from posttrain.runs.directory import RunDirectory
from posttrain.runs.manifest import SURROUNDINGS, describe_run, read_manifest


def write_description(
    run: RunDirectory, command: str, config: BaseModel, identity: dict[str, Any], ledgers: list[Ledger]
) -> None:
    """Write config.yaml, manifest.json and ledger.json.

    A manifest that is there keeps its start, and gets a line of each resume, with what had changed around the run by
    then: versions, code, hardware. That is said too, since other versions may round otherwise.
    """
    manifest = describe_run(identity, command)
    if run.manifest.is_file():
        earlier = read_manifest(run.manifest)
        changed = differences(*({key: each.get(key) for key in SURROUNDINGS} for each in (earlier, manifest)))
        for change in changed:
            console.print(f"  changed since the run was last started: {change}")
        resumed = [*earlier.get("resumed", []), {"time": manifest["started"], "changed": changed}]
        manifest = {**manifest, "started": earlier["started"], "resumed": resumed}
    # First: as long as it is not there, what a kill leaves is not known to be a run's.
    run.write_json(run.manifest, manifest)
    atomic_write_text(run.config, to_yaml(config))
    run.write_json(run.ledger, [ledger.as_dict() for ledger in ledgers])
