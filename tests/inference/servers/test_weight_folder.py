"""Weights for servers that read them from a shared folder."""

from pathlib import Path

from inference.servers.table_model import write_table
from posttrain.config.sections.servers import ServersConfig
from posttrain.inference.servers.weight_folder import SharedFolder


def test_weights_in_a_folder_that_others_can_read_are_for_their_owner_alone(tmp_path: Path) -> None:
    shared, weights = tmp_path / "shared", write_table(tmp_path / "weights", seed=1)
    shared.mkdir(0o755)
    copies = SharedFolder(ServersConfig.model_validate({"urls": ["http://127.0.0.1:1"], "folder": shared}))
    assert Path(copies.put(weights, "v1")).stat().st_mode & 0o777 == 0o700
    assert shared.stat().st_mode & 0o777 == 0o755
