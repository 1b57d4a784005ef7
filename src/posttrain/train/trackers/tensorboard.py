"""Writes TensorBoard's event files, in the run directory."""

from collections.abc import Mapping

from posttrain.config.sections.trackers import TensorBoardConfig
from posttrain.train.trackers.tracker import End, Opened, Remembered, TrackedRun


class TensorBoard:
    """Each attempt of a run has a file. TensorBoard itself hides what an earlier file has of steps done again."""

    def __init__(self, config: TensorBoardConfig, run: TrackedRun) -> None:
        self._run = run

    def open(self, remembered: Remembered | None) -> Opened:
        """Begin a file."""
        from torch.utils.tensorboard import SummaryWriter

        folder, done = self._run.path / "tensorboard", self._run.done
        self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)
        return Opened(str(folder), {}, {})

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write and flush, so that a kill loses nothing."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()

    def close(self, end: End) -> None:
        """Close the file."""
        self._writer.close()
