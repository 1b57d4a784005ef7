"""`run.push`: send the finished checkpoints of a run to a hub while it trains, one after another.

Each is sent by a process of its own. Training never waits for one, and what goes wrong with them does not end it.
"""

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import posttrain
from posttrain.base.console import console
from posttrain.base.guard import guarded
from posttrain.base.processes import is_main_process
from posttrain.base.text import clipped, counted
from posttrain.base.user_code import error_in_words
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.push import PushConfig
from posttrain.config.sections.run import RunConfig
from posttrain.hub.base_model import BaseModel, base_model, require_base
from posttrain.hub.pushed_record import PushedRecord
from posttrain.hub.repository import Repository, Target
from posttrain.runs.checkpoints import complete_checkpoints, rotate
from posttrain.runs.directory import RunDirectory

_WORKER = ("-P", "-m", "posttrain.hub.worker")


class PushingConfig(Protocol):
    """The config of a training command."""

    @property
    def model(self) -> ModelConfig: ...

    @property
    def lora(self) -> LoraConfig | None: ...

    @property
    def run(self) -> RunConfig: ...


def check_push(config: PushingConfig) -> None:
    """Ask the hub whether the checkpoints of a run could be pushed, if they are to be; nothing is changed.

    Raises:
        ConfigError: the token is refused, the repository is public and need not be, or the base or its licence is not
            known.
        ServerError: the hub cannot be reached.
    """
    if config.run.push is not None:
        repository = _repository(config.run.push)
        _base(config, config.run.push, repository)
        repository.check()


@contextmanager
def pushing(config: PushingConfig, run: RunDirectory) -> Iterator["Pushes | None"]:
    """What pushes the checkpoints of a run that is trained within the block; None if nothing is to be pushed.

    At the end of the block, all are waited for; if it fails, the rest is left to a resume. For the main process.

    Raises:
        ConfigError, ServerError: as `check_push`, or the repository cannot be made.
    """
    if config.run.push is None or not is_main_process():
        yield None
        return
    repository = _repository(config.run.push)
    base = _base(config, config.run.push, repository)
    repository.create()
    pushes = Pushes(config.run.push, run, base, repository.endpoint)
    try:
        yield pushes
        pushes.finish(config.run.keep_checkpoints)
    except BaseException:
        pushes.stop()
        raise


def _repository(config: PushConfig) -> Repository:
    return Repository(Target(config.repo, config.revision_of(0), config.public))


def _base(config: PushingConfig, push: PushConfig, repository: Repository) -> BaseModel:
    base = base_model(config.model, push.base_model, push.license, repository.licence_of)
    if config.lora is not None or config.model.adapter is not None:
        require_base(base, "run.push.base_model")
    return base


class Pushes:
    """A queue of checkpoints and the thread that pushes them."""

    def __init__(self, config: PushConfig, run: RunDirectory, base: BaseModel, endpoint: str) -> None:
        """Nothing is read or pushed before `begin`."""
        self._config, self._run, self._base, self._endpoint = config, run, base, endpoint
        self._changed = threading.Condition()
        self._waiting: list[int] = []
        self._current: int | None = None
        self._failed: dict[int, str] = {}
        self._given_up: dict[int, str] = {}
        self._done = 0
        self._retry_seconds = config.retry_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = self._is_last_round = False
        self._record: PushedRecord | None = None
        self._thread = threading.Thread(target=self._work, name="push", daemon=True)

    def begin(self) -> None:
        """Start, with the checkpoints that are there and were not pushed yet."""
        if self._record is not None:
            return
        self._record = PushedRecord(self._run)
        for checkpoint in complete_checkpoints(self._run):
            if not self._record.has(self._place(checkpoint.step), checkpoint):
                self._waiting.append(checkpoint.step)
        self._thread.start()

    def add(self, step: int) -> None:
        """Push the checkpoint of a step as soon as those before it are done."""
        with self._changed:
            if step in self._waiting or step == self._current:
                return
            self._waiting.append(step)
            self._give_up_the_oldest()
            self._changed.notify_all()

    def _give_up_the_oldest(self) -> None:
        """Let checkpoints be removed again if too many are not pushed: the disk may be small."""
        unpushed = sorted({*self._waiting, *self._failed})
        for step in unpushed[: -self._config.keep_unpushed]:
            self._given_up[step] = self._failed.pop(step, "too many were waiting (run.push.keep_unpushed)")
            if step in self._waiting:
                self._waiting.remove(step)

    @property
    def spared(self) -> frozenset[int]:
        """The steps of checkpoints that must not be removed: they are being pushed, wait for it, or have failed."""
        with self._changed:
            return frozenset({*self._waiting, *self._failed, *([] if self._current is None else [self._current])})

    def finish(self, keep: int) -> None:
        """Wait until all are pushed, try what failed once more, and say what came of it."""
        self.begin()
        self._wait()
        with self._changed:
            self._is_last_round, self._retry_seconds = True, 0.0
            self._waiting += sorted(self._failed)
            self._failed.clear()
            self._changed.notify_all()
        self._wait()
        self._close()
        rotate(self._run, keep, self.spared)
        self._tell()

    def stop(self) -> None:
        """End what is being pushed, and say what a resume will push."""
        self._close()
        left = sorted(self.spared)
        if left:
            steps = ", ".join(f"checkpoint-{step}" for step in left)
            console.print(f"not pushed to {self._config.repo}: {steps}; --resume pushes what is missing")

    def _wait(self) -> None:
        with self._changed:
            left = len(self._waiting) + (self._current is not None)
            if left:
                self._say(f"waiting for {counted(left, 'checkpoint')} to be pushed to {self._config.repo}")
            while self._waiting or self._current is not None:
                self._changed.wait(0.5)  # not for ever, so that Ctrl-C is noticed

    def _close(self) -> None:
        with self._changed:
            self._is_closed = True
            process = self._process
            self._changed.notify_all()
        if process is not None:
            process.terminate()  # its guard ends the worker
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                step = self._current = self._waiting.pop(0)
            try:
                outcome = self._push(step)
            except Exception as error:  # noqa: BLE001 - such as no memory for another process; training goes on
                outcome = {"error": error_in_words(error)}
            with self._changed:
                if self._is_closed and "error" in outcome:  # it was ended, and did not fail
                    self._waiting.insert(0, step)
                elif "error" in outcome:
                    self._failed[step] = outcome["error"]
                    self._give_up_the_oldest()
                else:
                    self._done += 1
                self._current = None
                self._changed.notify_all()

    def _push(self, step: int) -> Mapping[str, Any]:
        """Push a checkpoint in a process of its own, and tell it; `error` is why that failed."""
        assert self._record is not None
        checkpoint = next((each for each in complete_checkpoints(self._run) if each.step == step), None)
        if checkpoint is None:
            return {"error": "it is not there, or not complete"}
        if self._record.has(self._place(step), checkpoint):  # saved again, because it became the best
            return {}
        job = {
            "run": str(self._run.path.absolute()),
            "step": step,
            "target": asdict(Target(self._config.repo, self._config.revision_of(step), self._config.public)),
            "base": asdict(self._base),
            "retry_seconds": self._retry_seconds,
        }
        outcome = self._outcome(json.dumps(job))
        if "error" in outcome:
            if not (self._is_closed or self._is_last_round):  # at the end all is told together
                self._say(f"warning: checkpoint-{step} is not pushed yet: {clipped(outcome['error'])}")
            return outcome
        try:
            self._record.add(self._place(step), checkpoint, outcome["commit"])
        except OSError as error:
            self._unrecorded(error)
        place = f"{self._config.repo} at {self._config.revision_of(step)}"
        self._say(f"pushed checkpoint-{step} to {place}" + (" (it was there)" if not outcome["uploaded"] else ""))
        return outcome

    def _outcome(self, job: str) -> Mapping[str, Any]:
        package = str(Path(posttrain.__path__[0]).parent)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        with self._changed:
            if self._is_closed:
                return {"error": "stopped"}
            process = self._process = subprocess.Popen(
                guarded([sys.executable, *_WORKER, job]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        output, _ = process.communicate()
        self._process = None
        lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
        try:
            return dict(json.loads(lines[-1]))
        except (ValueError, LookupError, TypeError):
            told = clipped(lines[-1]) if lines else "it said nothing"
            return {"error": f"the process that pushes ended with exit code {process.returncode}: {told}"}

    def _say(self, text: str) -> None:
        console.print(text, markup=False, highlight=False)

    def _tell(self) -> None:
        """Say how many are pushed, and for each that is not, why, and the command that pushes it."""
        missing = {**self._given_up, **self._failed}
        total = self._done + len(missing)
        if total:
            self._say(f"{self._done} of {counted(total, 'checkpoint')} pushed to {self._config.repo}")
        for step in sorted(missing):
            self._say(f"warning: checkpoint-{step} is not on the hub: {clipped(missing[step])}")
            there = (self._run.path / f"checkpoint-{step}").is_dir()
            self._say(f"  {self._command(step)}" if there else "  it has been removed since (run.keep_checkpoints)")
        if self._record is not None and missing:
            try:
                self._record.miss(missing)
            except OSError as error:
                self._unrecorded(error)

    def _unrecorded(self, error: OSError) -> None:
        """Only a resume will miss it, and ask the hub."""
        self._say(f"warning: {self._run.pushed} was not written: {error.strerror or error}")

    def _command(self, step: int) -> str:
        """The command that pushes a checkpoint."""
        config = self._config
        words = ["toolkit-push", str(self._run.config), config.repo]
        words += ["--checkpoint", str(step), "--revision", config.revision_of(step)]
        words += ["--license", self._base.licence]
        words += ["--base", self._base.repo] if self._base.repo else []
        words += ["--public"] if config.public else []
        return shlex.join(words)

    def _place(self, step: int) -> str:
        return f"{self._endpoint}/{self._config.repo}@{self._config.revision_of(step)}"
