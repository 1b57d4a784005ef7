"""Config of the server's limits."""

import os

from pydantic import Field, model_validator

from posttrain.config.strict import StrictModel


class LimitsConfig(StrictModel):
    """How much one request may contain, and how long a grader may take."""

    grader_seconds: float = Field(default=2.0, gt=0)
    """Time limit for all built-in graders together on one completion, and for all graders of your own together; a
    worker that takes longer is killed soon after."""

    grade_seconds: float = Field(default=30.0, gt=0)
    """Time limit for a response to `/grade`; completions that are not graded by then abstain."""

    queue_items: int = Field(default=20_000, ge=1)
    """Maximum number of completions waiting for a worker; beyond it, requests get a 429."""

    batch_size: int = Field(default=4096, ge=1)
    """Maximum number of prompts per `/sample` request."""

    items: int = Field(default=4096, ge=1)
    """Maximum number of completions per `/grade` request."""

    body_mb: float = Field(default=64.0, gt=0)
    """Maximum size of a request's body, in MiB, before and after decompression."""

    bodies_mb: float = Field(default=256.0, gt=0)
    """Maximum total size of the bodies of all requests being received or answered, in MiB after decompression; beyond
    it, requests get a 429."""

    receive_seconds: float = Field(default=60.0, gt=0)
    """Time limit for receiving a request, after which its connection is closed."""

    connections: int = Field(default=1000, ge=1)
    """Maximum number of open connections; one more gets a 503 and is closed."""

    completion_chars: int = Field(default=1_000_000, ge=1)
    """Maximum length of a completion, in characters; a longer one gets the status error."""

    cache_mb: float = Field(default=64.0, ge=0)
    """Memory for caching rewards that have already been given, in MiB."""

    workers: int | None = Field(default=None, ge=1)
    """Number of grading processes, with as many again for graders of your own; null is one per processor."""

    worker_memory_mb: float = Field(default=2048.0, ge=256)
    """Maximum address space of one worker, in MiB."""

    worker_tasks: int = Field(default=2000, ge=1)
    """A worker is replaced after this many tasks, so that memory leaks in graders stay small."""

    @property
    def worker_count(self) -> int:
        """`workers`, or the number of processors that this process may use."""
        # macOS does not say which processors those are.
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return self.workers or usable or 1

    @property
    def body_bytes(self) -> int:
        """`body_mb` in bytes."""
        return int(self.body_mb * 2**20)

    @model_validator(mode="after")
    def _a_body_fits(self) -> "LimitsConfig":
        if self.bodies_mb < self.body_mb:
            raise ValueError(
                f"bodies_mb {self.bodies_mb:g} (for all requests together) is less than body_mb {self.body_mb:g} (for "
                "one); raise bodies_mb"
            )
        return self

    @model_validator(mode="after")
    def _a_grader_fits_into_a_request(self) -> "LimitsConfig":
        if self.grader_seconds >= self.grade_seconds:
            raise ValueError(
                f"grader_seconds {self.grader_seconds:g} leaves no time for an answer within grade_seconds "
                f"{self.grade_seconds:g}; raise grade_seconds"
            )
        return self
