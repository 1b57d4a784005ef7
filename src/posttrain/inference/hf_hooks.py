"""What rides along with transformers' `generate`: it calls these once for each token of a batch.

`generate` runs the logits processors that it is given in their order, after those of its own config (there are
none here, see `posttrain.inference.hf`) and before temperature, top-k, top-p and min-p.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from posttrain.inference.text import decode


class LogProbRecorder(LogitsProcessor):
    """Remembers the log-probability of each chosen token, one step behind: a step's token is known at the next.

    It has to be the first of the processors, so that the logits are the model's own.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature or 1.0
        self._pending: torch.Tensor | None = None
        self._recorded: list[torch.Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Take ids of shape [rows, seq] and logits of shape [rows, vocabulary], which go through unchanged."""
        self._record(input_ids[:, -1])
        self._pending = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        return scores

    def finish(self, sequences: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all generated tokens, shape [rows, new tokens]."""
        self._record(sequences[:, -1])
        return torch.stack(self._recorded, dim=1)

    def _record(self, tokens: torch.Tensor) -> None:
        if self._pending is not None:
            self._recorded.append(self._pending.gather(1, tokens[:, None]).squeeze(1))
            self._pending = None


class RepetitionPenalty(LogitsProcessor):
    """Divides the positive logits of tokens that were already there by `penalty`, and multiplies the negative ones.

    Unlike transformers' own it passes over padding, so that an answer does not depend on its batch.
    """

    def __init__(self, penalty: float, mask: torch.Tensor) -> None:
        self._penalty = penalty
        self._padding = mask == 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Take ids of shape [rows, seq] and logits of shape [rows, vocabulary]."""
        ids = input_ids.clone()
        width = self._padding.shape[1]
        # In the place of padding stands the last token of the prompt, which is penalised anyway.
        ids[:, :width] = torch.where(self._padding, ids[:, width - 1 : width], ids[:, :width])
        said = scores.gather(1, ids)
        return scores.scatter(1, ids, torch.where(said < 0, said * self._penalty, said / self._penalty))


class StopStrings(StoppingCriteria):
    """Ends a row once a stop string is in the text of its answer; the prompt does not count.

    `lengths` holds the number of answer tokens at that point, for each row that was ended.
    """

    def __init__(self, stop: Sequence[str], tokenizer: Any, prompt_width: int) -> None:
        self.lengths: dict[int, int] = {}
        self._stop = stop
        self._tokenizer = tokenizer
        self._prompt_width = prompt_width
        # A token is a byte or more, so a stop string that ends in the last token starts within so many; a few
        # more, because the decoder may write the first tokens of a text unlike later ones.
        self._tail = max(len(string.encode()) for string in stop) + 8

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Take ids of shape [rows, seq]; which rows are ended, shape [rows]."""
        length = input_ids.shape[1] - self._prompt_width
        tails = input_ids[:, -min(self._tail, length) :].tolist()
        for row, tail in enumerate(tails):
            if row not in self.lengths:
                text = decode(self._tokenizer, tail)
                if any(string in text for string in self._stop):
                    self.lengths[row] = length
        ended = [row in self.lengths for row in range(len(tails))]
        return torch.tensor(ended, device=input_ids.device)
