"""A trace of some optimizer steps by torch's profiler, in the run directory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import profile, schedule

from posttrain.base.console import console
from posttrain.base.processes import is_main_process
from posttrain.config.sections.training import ProfileConfig
from posttrain.runs.directory import RunDirectory


@contextmanager
def profiled(config: ProfileConfig | None, run: RunDirectory, done: int) -> Iterator[Callable[[], object]]:
    """Record the steps that the config names within the block, which begins after `done` steps.

    Yields what is called after each step. A step of the block before the first recorded one starts the profiler, whose
    own start would otherwise be in the trace. Nothing is recorded if some of the steps are done already, and in all but
    the main process.
    """
    if config is None or config.first_step <= done or not is_main_process():
        yield lambda: None
        return
    path = run.path / config.file_name
    before = config.first_step - 1 - done
    warmup = min(1, before)

    def write(recorded: profile) -> None:
        recorded.export_chrome_trace(str(path))
        console.print(f"profile of steps {config.first_step} to {config.last_step}: {path}")

    when = schedule(wait=before - warmup, warmup=warmup, active=config.steps, repeat=1)
    with profile(schedule=when, on_trace_ready=write) as profiler:
        yield profiler.step
