"""Log-probabilities that a model gives to texts, kept in a file that is named by everything they depend on."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.base.console import Counting
from posttrain.base.files import atomic_write_text, described_hash
from posttrain.conversation.masks import TokenRow
from posttrain.errors import ConfigError, RunError

if TYPE_CHECKING:
    from posttrain.evaluate.models import LocalModel, Model


@dataclass(frozen=True)
class Scoring:
    """Rows of tokens to be scored by a model."""

    model: "LocalModel"
    rows: Sequence[TokenRow]
    path: Path

    @classmethod
    def of(cls, model: "LocalModel", file: str, rows: Sequence[TokenRow], folder: Path) -> "Scoring":
        """The rows of the task `file`; nothing is loaded yet."""
        hashed = blake2b(digest_size=16)
        for row in rows:
            hashed.update(repr((row.ids, row.trained)).encode())
        key = described_hash({"model": model.identity, "rows": hashed.hexdigest()})
        return cls(model, rows, folder / f"{file}-{key[:16]}.json")

    @property
    def is_done(self) -> bool:
        """Whether the rows have been scored."""
        return self.path.is_file()

    @property
    def longest(self) -> int:
        """The largest number of tokens, with the one more that some engines need."""
        return 1 + max(len(row.ids) for row in self.rows)

    def run(self) -> list[float]:
        """For each row the sum of log p over its trained tokens, in nats; RunError if one is not a number."""
        if not self.is_done:
            sums = [0.0] * len(self.rows)
            with Counting("scoring", "texts", len(self.rows)) as progress:
                for number, logprobs in self.model.token_logprobs(self.rows):
                    sums[number] = sum(logprobs)
                    progress.advance()
            if not all(map(math.isfinite, sums)):
                raise RunError("log-probabilities are not finite; are the weights damaged, or does the dtype not fit?")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(self.path, json.dumps(sums))
        return json.loads(self.path.read_text(encoding="utf-8"))


def require_local(model: "Model", task: str) -> "LocalModel":
    """Return the model; ConfigError if it is behind a server, which gives no log-probabilities of texts."""
    from posttrain.evaluate.models import LocalModel

    if not isinstance(model, LocalModel):
        raise ConfigError(f"tasks.{task}: needs log-probabilities of given texts, which a server does not give")
    return model
