"""Run as a program: `peak_memory.py FOLDER` merges the adapter in it and prints its time and memory, in bytes, as JSON.

`floor` is the peak after the imports. `above_floor` is how much the merge adds to it, as the kernel measures it;
`anonymous_above_floor` is the same for anonymous memory, sampled every 2 ms.
"""

import json
import sys
import threading
import time
from pathlib import Path

import torch

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.merge.merge import merge_adapter


def memory(key: str) -> int:
    """A value of /proc/self/status in bytes: VmHWM is the peak, RssAnon the memory not backed by a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def main(folder: Path) -> None:
    floor, anonymous_floor = memory("VmHWM"), memory("RssAnon")
    seen = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            seen[0] = max(seen[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    base = ModelConfig(name=str(folder / "base"), backend="hf")
    merge_adapter(base, folder / "adapter", folder / "merged", chat=ChatConfig())
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    print(  # noqa: T201
        json.dumps(
            {
                "seconds": seconds,
                "above_floor": memory("VmHWM") - floor,
                "anonymous_above_floor": seen[0] - anonymous_floor,
                "floor": floor,
            }
        )
    )


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(Path(sys.argv[1]))
