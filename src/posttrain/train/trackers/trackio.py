"""Keeps a run's numbers in Trackio's local database."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout

from posttrain.config.sections.trackers import TrackioConfig
from posttrain.errors import RunError
from posttrain.train.trackers.tracker import End, Opened, Remembered, TrackedRun


class Trackio:
    """A run of Trackio with the name of the run. Trackio cannot tell which steps it has."""

    def __init__(self, config: TrackioConfig, run: TrackedRun) -> None:
        self._config = config
        self._run = run

    def open(self, remembered: Remembered | None) -> Opened:
        """Start or continue the run.

        Raises:
            RunError: another run of the same name has begun in the project since.
        """
        import trackio  # pyright: ignore[reportMissingImports]

        ours = remembered["id"] if remembered and remembered["project"] == self._config.project else None
        with redirect_stdout(sys.stderr):  # stdout is for a command's result
            self._logged = trackio.init(
                project=self._config.project,
                name=self._run.name,
                config=dict(self._run.config),
                resume="never" if ours is None else "must",
                embed=False,
            )
        if ours not in (None, self._logged.id):  # Trackio finds runs by name alone, and takes the newest
            raise RunError(
                f"another run named {self._run.name} has begun in project {self._config.project} since, and would be "
                "continued in its place"
            )
        place = f"project {self._config.project}, shown by `trackio show`"
        return Opened(place, {"project": self._config.project, "id": self._logged.id}, {} if ours is None else None)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Hand the numbers to Trackio, which writes them within a second."""
        self._logged.log(dict(values), step=step)

    def close(self, end: End) -> None:
        """Wait until everything is written."""
        with redirect_stdout(sys.stderr):
            self._logged.finish()
