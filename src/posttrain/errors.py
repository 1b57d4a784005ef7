"""Exceptions for every error that a user can cause or run into."""


class ToolkitError(Exception):
    """Base class. Messages are for users: what is wrong, where, and what to do."""

    exit_code = 1


class ConfigError(ToolkitError, ValueError):
    """A config file, a `--set` override or a command-line argument is wrong."""

    exit_code = 2


class DataError(ToolkitError, ValueError):
    """A data file is missing, unreadable, or holds records that cannot be used."""

    exit_code = 2


class ModelError(ToolkitError, ValueError):
    """A model, adapter or tokenizer is missing, or does not fit the config."""

    exit_code = 2


class RunError(ToolkitError, RuntimeError):
    """A run failed after it had started."""


class RunInterrupted(RunError):
    """A signal stopped a run, after a checkpoint unless no step had finished.

    `exit_code` is 128 plus the signal's number.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ServerError(ToolkitError, RuntimeError):
    """A server that the run depends on failed or sent an invalid response."""
