"""Push one checkpoint of a run, in a process of its own: python -P -m posttrain.hub.worker JOB.

JOB is JSON, without any secret. The last line of the output is the outcome, as JSON.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain.base.secrets import without_secrets
from posttrain.base.user_code import error_in_words
from posttrain.errors import ToolkitError
from posttrain.hub.base_model import BaseModel
from posttrain.hub.card import Contents, model_card
from posttrain.hub.facts import RunFacts
from posttrain.hub.package import is_adapter, model_package
from posttrain.hub.repository import Pushed, Repository, Target
from posttrain.runs.checkpoints import find_checkpoint
from posttrain.runs.directory import RunDirectory

# Of niceness: training comes first where both want the processor.
_NICER = 10


def push_checkpoint(run: RunDirectory, step: int, target: Target, base: BaseModel, retry_seconds: float) -> Pushed:
    """Push the checkpoint of a step, with a card about the run until then.

    Raises:
        ConfigError: the checkpoint is gone or damaged, or the hub refuses it.
        RunError: the hub failed for too long.
    """
    repository = Repository(target)
    folder = find_checkpoint(run, str(step)).path
    contents = Contents("adapter" if is_adapter(folder) else "whole", target, base)
    card = model_card(RunFacts.read(run, step), contents)
    package = model_package(folder, card, base.repo, base.revision)
    return repository.push(package, f"{run.path.name}, step {step}: {contents.kind}", retry_seconds)


def main() -> None:
    """Do the job of the first argument."""
    job = json.loads(sys.argv[1])
    os.nice(_NICER)
    print(json.dumps(_outcome(job)), flush=True)  # noqa: T201 - this is how the outcome is told


def _outcome(job: dict[str, Any]) -> dict[str, Any]:
    try:
        target, base = Target(**job["target"]), BaseModel(**job["base"])
        pushed = push_checkpoint(RunDirectory(Path(job["run"])), job["step"], target, base, job["retry_seconds"])
    except ToolkitError as error:
        return {"error": without_secrets(str(error))}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and training goes on
        return {"error": without_secrets(error_in_words(error))}
    return asdict(pushed)


if __name__ == "__main__":
    main()
