"""Compare the merged model with the base plus adapter, loading one model at a time."""

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.encoder import HfTextEncoder, conversation_encoder
from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import DataError, RunError
from posttrain.models.backend import LoadedModel
from posttrain.models.hf import HfBackend

_PROBES = (
    Conversation((Message("user", "Name three primary colours."), Message("assistant", "Red, yellow and blue."))),
    Conversation(
        (
            Message("system", "Answer in one word."),
            Message("user", "Is 17 a prime number?"),
            Message("assistant", "Yes."),
            Message("user", "And 18?"),
            Message("assistant", "No."),
        )
    ),
    Conversation(
        (
            Message("user", "def area(r):\n    return 3.14159 * r ** 2\n\nWas berechnet das? 円の面積?"),
            Message("assistant", "Die Fläche eines Kreises mit dem Radius `r`."),
        )
    ),
)

# Float arithmetic in another order changes logits by this share of the largest; rounding each weight to a shorter
# format changes them by about the format's epsilon, which adds up over the layers.
_ARITHMETIC = 1e-4
_EPSILONS = 5


@dataclass(frozen=True)
class Verification:
    """How far the merged model is from base plus adapter: logits, and the share of tokens with the same top-1 choice.

    `tolerance` is the largest difference that rounding the weights explains.
    """

    max_difference: float
    top1_agreement: float
    tolerance: float
    tokens: int

    def __str__(self) -> str:
        return (
            f"largest logit difference {self.max_difference:.2g} (at most {self.tolerance:.2g} from rounding), "
            f"same top-1 token for {self.top1_agreement:.1%} of {self.tokens} positions"
        )


def verify_merge(
    base: ModelConfig, adapter: Path, merged: Path, *, chat: ChatConfig, weights_dtype: torch.dtype
) -> Verification:
    """Run a few fixed conversations through both models in float32 and compare all logits.

    Args:
        weights_dtype: the dtype in which the merged weights are stored; of several, the coarsest.

    Raises:
        RunError: they tokenise differently, or their logits differ by more than rounding the weights explains.
    """
    computing = {"dtype": "float32", "quantization": "none", "backend": "hf"}
    rows, expected = _logits(base.model_copy(update=computing), adapter, chat)
    # What the config had to say about the base is in the merged model's own files, so that they are tested too.
    alone = {**computing, "name": str(merged), "revision": None, "added_tokens": (), "adapter": None}
    merged_rows, actual = _logits(base.model_copy(update=alone), None, chat)
    if rows != merged_rows:
        raise RunError(f"the tokenizer in {merged} does not tokenise like the one used in training")
    difference = max(_largest(one - other) for one, other in zip(expected, actual, strict=True))
    same = [one.argmax(dim=-1) == other.argmax(dim=-1) for one, other in zip(expected, actual, strict=True)]
    share = _ARITHMETIC + (0 if weights_dtype.itemsize >= 4 else _EPSILONS * torch.finfo(weights_dtype).eps)
    result = Verification(
        max_difference=difference,
        top1_agreement=torch.cat(same).float().mean().item(),
        tolerance=share * max(_largest(logits) for logits in expected),
        tokens=sum(len(row) for row in rows),
    )
    if not difference <= result.tolerance:  # also catches NaN
        raise RunError(f"the merged model in {merged} does not match base plus adapter: {result}")
    return result


def _logits(config: ModelConfig, adapter: Path | None, chat: ChatConfig) -> tuple[list[list[int]], list[torch.Tensor]]:
    """The probes' token ids, and the logits of each, shape [tokens, vocabulary]; the model is freed."""
    loaded = HfBackend().load_for_inference(config, adapter, chatml=chat.template == "chatml")
    rows = _probe_ids(chat, loaded.tokenizer)
    logits = [_forward(loaded, row) for row in rows]
    del loaded
    gc.collect()  # a model's modules form reference cycles
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return rows, logits


def _probe_ids(chat: ChatConfig, tokenizer: Any) -> list[list[int]]:
    """The probes' token ids by the chat template, or as plain text if it rejects one: many reject a system message."""
    encoder, plain = conversation_encoder(chat, tokenizer), HfTextEncoder(tokenizer)
    rows = []
    for probe in _PROBES:
        try:
            rows += encoder.prompts([probe])
        except DataError:
            rows += plain.encode(["\n".join(message.content for message in probe.messages)])
    return rows


@torch.no_grad()
def _forward(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    model: Any = loaded.model
    return model(torch.tensor([ids], device=loaded.device)).logits[0].float().cpu()


def _largest(values: torch.Tensor) -> float:
    return values.abs().max().item()
