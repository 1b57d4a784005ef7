"""Ask the hub, before a run begins, whether its checkpoints could be pushed."""

from typing import TYPE_CHECKING

from posttrain.base.extras import require_extra

if TYPE_CHECKING:
    from posttrain.hub.pushes import PushingConfig


def require_push(config: "PushingConfig") -> None:
    """Ask the hub, if `run.push` names one, whether the checkpoints could be pushed; errors as `check_push`."""
    if config.run.push is not None:
        require_extra("train", "run.push")
        from posttrain.hub.pushes import check_push

        check_push(config)
