"""The log of a server, as text or as lines of JSON, without secrets."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from posttrain.base.console import console
from posttrain.base.secrets import DiscreetHandler

_OWN = ("request_id", "status", "ms")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({key: getattr(record, key) for key in _OWN if hasattr(record, key)})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(form: Literal["text", "json"], debug: bool, name: str) -> Callable[[str], None]:
    """Send the log to the error stream; requests are logged only in JSON or with `debug`.

    Returns the function that reports the start: it writes to the log if that is JSON, else to the console.

    Args:
        name: of the logger that it uses.
    """
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler = DiscreetHandler(JsonLines() if form == "json" else text)
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("posttrain").setLevel(logging.DEBUG if debug or form == "json" else logging.WARNING)
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return logging.getLogger(name).info if form == "json" else console.print
