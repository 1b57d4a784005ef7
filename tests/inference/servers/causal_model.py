"""A real model behind a contract server: samples and scores with transformers, each completion from its own seed."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

# transformers loads only one model at a time in a process; several servers may share this one.
_LOADING = threading.Lock()


class CausalModel:
    """Samples and scores with the model in a folder, or with its base and the adapter in it; in float32."""

    def __init__(self, folder: Path) -> None:
        adapter = folder / "adapter_config.json"
        base = json.loads(adapter.read_text())["base_model_name_or_path"] if adapter.exists() else folder
        with _LOADING:
            model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            self._model = (PeftModel.from_pretrained(model, folder) if adapter.exists() else model).eval()

    @torch.no_grad()
    def _log_p(self, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """log p of each token after each of the ids, shape [ids, vocabulary]."""
        return (self._model(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of ids[1:] at temperature 1."""
        return self._log_p(ids)[range(len(ids) - 1), list(ids[1:])].tolist()

    def sample(
        self, prompt: Sequence[int], seed: int, temperature: float, most: int, end_ids: Sequence[int]
    ) -> tuple[list[int], list[float]]:
        """Tokens and their log-probabilities at the temperature; greedy if that is 0."""
        numbers, ids, logprobs = torch.Generator().manual_seed(seed), list(prompt), []
        for _ in range(most):
            log_p = self._log_p(ids, temperature or 1.0)[-1]
            drawn = log_p.argmax() if temperature == 0 else torch.multinomial(log_p.exp(), 1, generator=numbers)
            ids.append(int(drawn))
            logprobs.append(log_p[ids[-1]].item())
            if ids[-1] in end_ids:
                break
        return ids[len(prompt) :], logprobs
