"""A program: `read_file.py FILE...` reads each file as conversations and prints a line of JSON for each: the error
message if it is refused, the growth of the process's peak memory in bytes, and the seconds taken."""

import json
import resource
import sys
import time

from posttrain.data.records import Columns
from posttrain.data.sources import open_data
from posttrain.errors import DataError


def peak() -> int:
    """The process's peak memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    for path in sys.argv[1:]:
        floor, started, message = peak(), time.perf_counter(), None
        try:
            open_data(path, Columns()).read("error", require_answer=True)
        except DataError as error:
            message = str(error)
        told = {"message": message, "bytes": peak() - floor, "seconds": time.perf_counter() - started}
        print(json.dumps(told), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
