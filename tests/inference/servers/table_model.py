"""A model of one table: the next token depends on the last one alone, so that every probability can be worked out."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

VOCABULARY = 64
END = 2


def write_table(folder: Path, seed: int) -> Path:
    """Weights that differ clearly from those of another seed."""
    folder.mkdir(parents=True)
    table = np.random.default_rng(seed).normal(0, 2, (VOCABULARY, VOCABULARY)).astype(np.float32)
    table[:, END] += 2  # so that some completions end
    save_file({"table": table}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["Table"]}), encoding="utf-8")
    return folder


class TableModel:
    """Samples and scores with the table in a folder."""

    def __init__(self, folder: Path) -> None:
        self._table = load_file(next(folder.glob("*.safetensors")))["table"].astype(np.float64)

    def log_p(self, last: int, temperature: float = 1.0) -> np.ndarray:
        """log p of each token after `last`, shape [VOCABULARY]."""
        scores = self._table[last] / temperature
        return scores - np.logaddexp.reduce(scores)

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of ids[1:] at temperature 1."""
        return [float(self.log_p(last)[token]) for last, token in pairwise(ids)]

    def sample(
        self, prompt: Sequence[int], seed: int, temperature: float, most: int, end_ids: Sequence[int]
    ) -> tuple[list[int], list[float]]:
        """Tokens and their log-probabilities at the temperature; greedy if that is 0."""
        numbers, ids, logprobs = np.random.default_rng(seed), [], []
        last = prompt[-1]
        for _ in range(most):
            log_p = self.log_p(last, temperature or 1.0)
            last = int(log_p.argmax()) if temperature == 0 else int(numbers.choice(VOCABULARY, p=np.exp(log_p)))
            ids.append(last)
            logprobs.append(float(log_p[last]))
            if last in end_ids:
                break
        assert not any(math.isnan(value) for value in logprobs)
        return ids, logprobs
