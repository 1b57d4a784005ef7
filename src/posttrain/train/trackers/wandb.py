"""Sends a run's numbers to Weights & Biases, or keeps them for `wandb sync`."""

import os
import secrets
from collections.abc import Mapping

from posttrain.config.sections.trackers import WandBConfig
from posttrain.errors import RunError
from posttrain.train.trackers.tracker import CLOSE_SECONDS, End, Opened, Remembered, TrackedRun


class WandB:
    """A run of W&B with the same id after every resume; what it uploads are numbers and the config, and no code."""

    def __init__(self, config: WandBConfig, run: TrackedRun) -> None:
        self._config = config
        self._run = run

    def open(self, remembered: Remembered | None) -> Opened:
        """Start or continue the run.

        Raises:
            RunError: it is online, and there is no key.
        """
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # reports of wandb's own errors go to another company
        import wandb  # pyright: ignore[reportMissingImports]

        # wandb.init would ask for a key at the terminal.
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False, verify=False):
            raise RunError("no key: set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline")
        where = {"project": self._config.project, "entity": self._config.entity or ""}
        continues = remembered is not None and all(remembered[key] == value for key, value in where.items())
        self._logged = wandb.init(
            entity=self._config.entity,
            project=self._config.project,
            name=self._run.name,
            tags=self._config.tags,
            config=dict(self._run.config),
            dir=self._run.path,
            id=remembered["id"] if remembered is not None and continues else secrets.token_hex(4),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                quiet=True,
                finish_timeout=CLOSE_SECONDS - 5,
            ),
        )
        known = {**where, "id": self._logged.id}
        if self._logged.offline:
            return Opened(f"{self._logged.dir}, for `wandb sync`", known, None if continues else {})
        last = self._logged.step - 1
        return Opened(str(self._logged.url), known, {"train": last, "eval": last})

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Hand the numbers to wandb's own process."""
        self._logged.log(dict(values), step=step)

    def close(self, end: End) -> None:
        """Wait until everything is uploaded."""
        self._logged.finish(exit_code=0 if end == "finished" else 1)
