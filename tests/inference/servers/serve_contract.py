"""A contract server as a program, started as the real ones are: KIND --config FILE, and vLLM's key in a variable.

Like SGLang it prints its settings, key and all. `--sleep N` is how long it takes to load its model; with `--once FILE`
it serves the first time only, and with `--causal` a model of transformers.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import yaml

from inference.servers.contract_server import ContractServer
from inference.servers.table_model import TableModel


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--once", type=Path)
    parser.add_argument("--causal", action="store_true")
    options = parser.parse_args()
    settings = yaml.safe_load(options.config.read_text(encoding="utf-8"))
    key = settings.get("api-key") or os.environ["VLLM_API_KEY"]
    sys.stdout.write(f"pid {os.getpid()}, settings {settings}, key {key}\n")
    sys.stdout.flush()
    if options.fail or (options.once is not None and options.once.exists()):
        raise SystemExit("there is no such model")
    if options.once is not None:
        options.once.touch()
    time.sleep(options.sleep)
    model = settings.get("model") or settings["model-path"]
    read = TableModel
    if options.causal:
        from inference.servers.causal_model import CausalModel as read  # slow to import
    ContractServer(options.kind, Path(model), key=key, port=settings["port"], read=read)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
