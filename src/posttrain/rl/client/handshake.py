"""What is settled with the dataserver before anything heavy is loaded."""

import logging

from posttrain.dataserver.schemas import Meta
from posttrain.rl.client.client import DataserverClient

logger = logging.getLogger(__name__)


def handshake(client: DataserverClient, *, config_id: str | None = None, wait_seconds: float = 300.0) -> Meta:
    """Wait until the server serves, and hold it to one config from then on.

    Args:
        config_id: that of the run that is resumed; None takes the server's own.
        wait_seconds: for a server that is not there yet, or still checks its gold answers.

    Raises:
        ConfigError: nobody who answers at that address is a dataserver, or the token is wrong.
        ServerError: the server does not come in time, speaks another protocol, or has another config.
    """
    if config_id is not None:
        client.expect(config_id)
    meta = client.connect(wait_seconds)
    exposed = [name for name, sandbox in meta.sandboxes.items() if sandbox == "rlimits"]
    if exposed:
        logger.warning(
            "the dataserver's graders %s run the programs of completions under limits alone (sandbox: rlimits)",
            ", ".join(exposed),
        )
    return meta
