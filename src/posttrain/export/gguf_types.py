"""The types of GGUF files that can be written, and how far each may be from the model."""

from dataclasses import dataclass
from typing import Literal

GgufType = Literal["f32", "f16", "bf16", "q8_0", "q4_k_m"]

BY_CONVERTER: tuple[GgufType, ...] = ("f32", "f16", "bf16", "q8_0")
"""Types that llama.cpp's converter writes itself; the others need its program llama-quantize."""

TIE = 1e-3
"""First choices count as the same if the model's own logits for them differ by no more than this: rounding decides."""


@dataclass(frozen=True)
class Limits:
    """Limits on the distance between llama.cpp's answers and the model's, over all tokens of the answers.

    Attributes:
        kl: largest mean of KL(model ‖ file), in nats per token.
        agreement: smallest share of tokens that are the model's own first choice.
    """

    kl: float
    agreement: float


LIMITS: dict[GgufType, Limits] = {
    "f32": Limits(kl=1e-4, agreement=1.0),
    "f16": Limits(kl=1e-3, agreement=0.97),
    "bf16": Limits(kl=5e-3, agreement=0.95),
    "q8_0": Limits(kl=0.01, agreement=0.95),
    "q4_k_m": Limits(kl=0.1, agreement=0.9),
}
