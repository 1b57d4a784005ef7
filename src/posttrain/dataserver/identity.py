"""What decides prompts and rewards, as one short hash that servers and trainers compare."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.dataset_rows import Rows, json_digest
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.schemas import PROTOCOL_VERSION

# Where a server listens and how much it takes changes no prompt and no reward.
_NOT_PART_OF_IT = {"data_root", "datasets", "graders", "listen", "limits", "journal"}


def config_id(config: DataserverConfig, datasets: Mapping[str, Rows], graders: Mapping[str, Grader]) -> str:
    """Equal ids give equal prompts and rewards: a hash of the config, the content of the data and the graders."""
    return json_digest(
        {
            "protocol": PROTOCOL_VERSION.split(".")[0],
            "version": version("posttrain-toolkit"),
            "config": config.model_dump(mode="json", exclude=_NOT_PART_OF_IT),
            # In their order, which is that of the held-out rows.
            "datasets": [
                [name, dataset.model_dump(mode="json", exclude={"path"}), datasets[name].digest]
                for name, dataset in config.datasets.items()
            ],
            "graders": {
                name: [_without_folder(grader.model_dump(mode="json")), grader.identity()]
                for name, grader in graders.items()
            },
        }
    )


def _without_folder(grader: dict[str, Any]) -> dict[str, Any]:
    """The place of users' code as the same on every machine; what it holds is in the grader's own identity."""
    path = grader.get("path")
    return {**grader, "path": Path(path).name} if isinstance(path, str) else grader
