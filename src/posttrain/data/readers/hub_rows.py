"""Read a Hugging Face data set in a process of its own, for processes that must stay small.

python -m posttrain.data.readers.hub_rows NAME SPLIT FOLDER
"""

import json
import subprocess
import sys
from pathlib import Path

from posttrain.base.cache import cache_dir
from posttrain.base.files import atomic_writer
from posttrain.data.readers.tables import load_hub, table_digest, table_lines
from posttrain.errors import DataError


def fetch_hub_rows(name: str, split: str) -> Path:
    """A file with the rows of a Hugging Face data set as JSON Lines, in the cache folder.

    Raises:
        DataError: it cannot be loaded, or the package `datasets` is not installed.
    """
    folder = cache_dir() / "hub"
    command = [sys.executable, "-m", "posttrain.data.readers.hub_rows", name, split, str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"the process that reads {name} ended with {done.returncode}"]
        raise DataError(lines[-1])
    return Path(done.stdout.splitlines()[-1])


def main(name: str, split: str, folder: Path) -> None:
    """Write the rows, unless a file with the same rows is there, and print the file's path."""
    dataset = load_hub(name, split)
    path = folder / f"{table_digest(dataset, dataset.column_names)}.jsonl"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            for line in table_lines(dataset, dataset.column_names, name):
                file.write(json.dumps(line.value, default=str).encode() + b"\n")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    except DataError as error:
        sys.exit(str(error))
