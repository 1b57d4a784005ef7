"""What transformers' `generate` calls at each token: record, penalise, find ends, and tell who listens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from posttrain.inference.engine import decode


class LogProbRecorder(LogitsProcessor):
    """Records the log-probability of each sampled token, one step late: a step's token is known only at the next step.

    Must be the first of the processors, so that it gets the model's own logits.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature or 1.0
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None
        self._recorded: list[torch.Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Take ids of shape [rows, seq] and logits of shape [rows, vocabulary]; return the logits unchanged."""
        self._record(input_ids[:, -1])
        scaled = scores.float() if self._temperature == 1 else scores.float() / self._temperature
        self._pending = scaled, scaled.logsumexp(-1, keepdim=True)
        return scores

    def finish(self, sequences: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all generated tokens, shape [rows, new tokens]."""
        self._record(sequences[:, -1])
        return torch.stack(self._recorded, dim=1)

    def _record(self, tokens: torch.Tensor) -> None:
        if self._pending is not None:
            logits, log_sums = self._pending
            self._recorded.append((logits.gather(1, tokens[:, None]) - log_sums).squeeze(1))
            self._pending = None


class RepetitionPenalty(LogitsProcessor):
    """Divides the positive logits of tokens that already occurred by `penalty`, and multiplies the negative ones.

    Unlike the version in transformers it ignores padding, so that a completion does not depend on its batch.
    """

    def __init__(self, penalty: float, mask: torch.Tensor) -> None:
        self._penalty = penalty
        self._padding = mask == 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Take ids of shape [rows, seq] and logits of shape [rows, vocabulary]."""
        ids = input_ids.clone()
        width = self._padding.shape[1]
        # Replace padding with the last token of the prompt, which is penalised anyway.
        ids[:, :width] = torch.where(self._padding, ids[:, width - 1 : width], ids[:, :width])
        said = scores.gather(1, ids)
        return scores.scatter(1, ids, torch.where(said < 0, said * self._penalty, said / self._penalty))


class StopStrings(StoppingCriteria):
    """Ends a row once its completion's text contains a stop string; the prompt does not count.

    `lengths` maps each row ended this way to its number of completion tokens at that point.
    """

    def __init__(self, stop: Sequence[str], tokenizer: Any, prompt_width: int) -> None:
        self.lengths: dict[int, int] = {}
        self._stop = stop
        self._tokenizer = tokenizer
        self._prompt_width = prompt_width
        # A token is at least one byte, so a stop string that ends in the last token starts at most this many tokens
        # back. A few more are added because the decoder may render the first tokens of a text differently from later
        # ones.
        self._tail = max(len(string.encode()) for string in stop) + 8

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Take ids of shape [rows, seq]; return which rows have ended, shape [rows]."""
        length = input_ids.shape[1] - self._prompt_width
        tails = input_ids[:, -min(self._tail, length) :].tolist()
        for row, tail in enumerate(tails):
            if row not in self.lengths:
                text = decode(self._tokenizer, tail)
                if any(string in text for string in self._stop):
                    self.lengths[row] = length
        ended = [row in self.lengths for row in range(len(tails))]
        return torch.tensor(ended, device=input_ids.device)


class Listener(StoppingCriteria):
    """Tells each token of each row, without end tokens, and ends a row of which no more is wanted.

    `lengths` maps each row ended this way to its number of completion tokens at that point. Must come after the
    criterion that finds stop strings, whose `lengths` are `stopped`.
    """

    def __init__(
        self, hear: Callable[[int, int], bool], end_ids: frozenset[int], stopped: dict[int, int], prompt_width: int
    ) -> None:
        self.lengths: dict[int, int] = {}
        self._hear = hear
        self._end_ids = end_ids
        self._stopped = stopped
        self._prompt_width = prompt_width
        self._ended: set[int] = set()

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Take ids of shape [rows, seq]; return which rows have ended, shape [rows]."""
        tokens = input_ids[:, -1].tolist()
        for row, token in enumerate(tokens):
            if row in self._ended:
                continue
            if token in self._end_ids:
                self._ended.add(row)
            elif not self._hear(row, token):
                self._ended.add(row)
                self.lengths[row] = input_ids.shape[1] - self._prompt_width
            elif row in self._stopped:
                self._ended.add(row)
        return torch.tensor([row in self.lengths for row in range(len(tokens))], device=input_ids.device)


class EnoughEnded(StoppingCriteria):
    """Interrupts all rows once a quarter of them has ended, so that they can go on without those.

    Must be the last criterion; `lengths` are those of the others.
    """

    def __init__(self, end_ids: frozenset[int], lengths: Sequence[Mapping[int, int]]) -> None:
        self._end_ids = end_ids
        self._lengths = lengths
        self._ended: set[int] = set()

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Take ids of shape [rows, seq]; return whether to interrupt, shape [rows]."""
        tokens = input_ids[:, -1].tolist()
        self._ended.update(row for row, token in enumerate(tokens) if token in self._end_ids)
        self._ended.update(*self._lengths)
        return torch.full((len(tokens),), 4 * len(self._ended) >= len(tokens), device=input_ids.device)
