"""Run the toolkit's commands as forks of one process that has imported everything and computed nothing.

    forked_process.py

prints its pid, reads orders from stdin, one JSON object per line, and reports how the fork for each order ended. A
command starts within a tenth of a second, and is otherwise an independent process.

    forked_process.py ORDER

runs one command in this process, including its imports.

An order has `words` (the command line), `log` (a file for the output), `watched` (a folder), `told` (a file for the
operations seen in that folder), `happenings` (faults triggered by operations), `after` (a fault after a number of
seconds, or null) and `environment` (variables to set).
"""

import gc
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

# Modules that the commands import lazily.
IMPORTED = (
    "posttrain.cli.sft",
    "posttrain.cli.dpo",
    "posttrain.cli.rl_train",
    "posttrain.cli.merge",
    "posttrain.cli.predict",
    "posttrain.models.hf",
    "posttrain.runs.plots",
    "posttrain.train.loop",
    "posttrain.train.parallel.ranks",
    "posttrain.sft.train",
    "posttrain.sft.recipe",
    "posttrain.dpo.train",
    "posttrain.dpo.recipe",
    "posttrain.rl.train",
    "posttrain.rl.recipe",
    "posttrain.rl.report",
    "posttrain.rl.rollout.engines.open",
    "posttrain.merge.merge",
    "posttrain.inference.hf.engine",
    "transformers.models.llama.modeling_llama",
)
# No command in these tests takes this long.
_LONGEST_SECONDS = 200.0
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# For each audit event: the index of the path argument, and of the dir_fd argument.
_CHANGES = {
    "os.mkdir": (0, 2),
    "os.remove": (0, 1),
    "os.rename": (1, 3),
    "os.rmdir": (0, 1),
    "os.truncate": (0, None),
}
BALLAST = "ballast"


class Operations:
    """An audit hook that sees, before it is made, each change by Python of a file's name or length in a folder.

    It does not see writes by native libraries; faults during those have to be timed.

    Attributes:
        seen: a short description of each operation, without the numbers that vary between files.
    """

    def __init__(self, folder: str, happenings: list[dict[str, Any]]) -> None:
        self.seen: list[str] = []
        self._folder = os.path.realpath(folder)
        self._happenings = happenings
        self._counts: Counter[str] = Counter()

    def __call__(self, event: str, values: tuple[Any, ...]) -> None:
        operation = self._operation(event, values)
        if operation is None:
            return
        self.seen.append(operation)
        self._counts[operation] += 1
        for each in self._happenings:
            if (each["operation"], each["time"]) == (operation, self._counts[operation]):
                _happen(each["what"], os.getpid(), self._folder)

    def _operation(self, event: str, values: tuple[Any, ...]) -> str | None:
        if event == "open":
            path, _, flags = values
            if not flags & _WRITING:
                return None
            name = self._name(path, None)
            return name and f"write {name}"
        if event not in _CHANGES:
            return None
        path, folder = _CHANGES[event]
        name = self._name(values[path], None if folder is None else values[folder])
        return name and f"{event.removeprefix('os.')} {name}"

    def _name(self, path: Any, folder: int | None) -> str | None:
        """The path relative to the watched folder, without the parts that vary between files of one kind."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        if folder is not None and folder >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
        # os.path.realpath would cost more than the operations themselves.
        whole = os.path.abspath(os.fsdecode(path))
        if not whole.startswith(self._folder + os.sep) or os.path.basename(whole) == BALLAST:
            return None
        name = whole[len(self._folder) + 1 :]
        name = re.sub(r"\.[0-9a-f]{16}\.tmp", ".tmp", name)
        name = re.sub(r"[0-9a-f]{32}", "KEY", name)
        return re.sub(r"-\d+", "-N", name)


def main() -> None:
    if len(sys.argv) > 1:
        sys.exit(run(json.loads(sys.argv[1])))
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # or the first garbage collection in each fork would copy every page that it visits
    _tell(pid=os.getpid())
    for line in sys.stdin:
        _fork(json.loads(line))


def _fork(order: dict[str, Any]) -> None:
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _be_a_command(order)
    code, too_late = _wait(pid, order)
    _tell(code=code, too_late=too_late, seconds=time.monotonic() - began)


def _be_a_command(order: dict[str, Any]) -> None:
    code = 1
    try:
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor, own in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(descriptor, own)
        code = run(order)
    except BaseException:  # noqa: BLE001  # or the fork would go on as a second server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(order: dict[str, Any]) -> int:
    """Run the command of an order in this process and return its exit code."""
    operations = Operations(order["watched"], order["happenings"])
    sys.addaudithook(operations)
    os.environ.update(order["environment"])
    program, *arguments = sys.argv = order["words"]
    [script] = entry_points(group="console_scripts", name=program)
    code = 0
    try:
        script.load()(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    Path(order["told"]).write_text(json.dumps(operations.seen))
    return code


def _happen(what: str, process: int, folder: str) -> None:
    if what == "disk full":
        _fill(folder)
    else:
        os.kill(process, signal.Signals[what])


def _fill(folder: str) -> None:
    """Fill the folder's file system to the last block."""
    with open(os.path.join(folder, BALLAST), "wb", buffering=0) as ballast:
        for size in (2**20, 2**12):
            with suppress(OSError):
                while True:
                    ballast.write(bytes(size))


def _wait(pid: int, order: dict[str, Any]) -> tuple[int, bool]:
    """Return the exit code, negative if a signal ended it, and whether it ended before the `after` fault was due."""
    after = order["after"]
    descriptor = os.pidfd_open(pid)
    try:
        too_late = after is not None and _ends_within(after["seconds"], descriptor)
        if after is not None and not too_late:
            _happen(after["what"], pid, order["watched"])
        if not _ends_within(_LONGEST_SECONDS, descriptor):
            os.kill(pid, signal.SIGABRT)  # no test sends this one
    finally:
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), too_late


def _ends_within(seconds: float, process: int) -> bool:
    return bool(select.select([process], [], [], seconds)[0])


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)  # noqa: T201


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main()
