"""A look at a run's dataserver that leaves nothing behind: for plans, and for trying things out."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from posttrain.rl.client.connection import Connection, connected
from posttrain.rl.client.local_server import LocalServer
from posttrain.rl.config.rl import DataserverSection
from posttrain.runs.directory import RunDirectory


@contextmanager
def visiting(section: DataserverSection, *, retry_seconds: float | None = None) -> Iterator[Connection]:
    """A connection under a run's name of its own. A server that is started for it logs and journals aside.

    Args:
        retry_seconds: how long a request is repeated, instead of the section's own.

    Raises:
        ConfigError, DataError: the server's config is wrong.
        ServerError: the server cannot be reached.
    """
    with ExitStack() as stack:
        aside = Path(stack.enter_context(TemporaryDirectory(prefix="posttrain-toolkit-")))
        changes: dict[str, object] = {} if retry_seconds is None else {"retry_seconds": retry_seconds}
        if section.config is not None:
            # The grades of a visit are none of a run's; and the journal may be in use by the server of one.
            journal = (f"journal.path={aside / 'journal.sqlite'}", "journal.url=null")
            server = stack.enter_context(LocalServer(section.config, aside / "dataserver.log", journal))
            changes |= {"config": None, "url": server.url}
        visited = section.model_copy(update=changes)
        yield stack.enter_context(connected(visited, RunDirectory(aside / "visit"), resume=False))
