"""What the watchdogs look at in supervised fine-tuning."""

import math
from collections import deque
from statistics import median

from posttrain.train.watchdogs import Row, Watchdog, training_watchdogs

_NOTHING_LEFT = (
    "the model gives every trained token of the step with certainty, so these rows teach nothing more: end the stage "
    "earlier (stages.until_step), mix in other data, or see whether all answers are the same"
)

# Answers end in many ways, so that the end is no certainty; but below a probability of 0.1 nine of ten go on.
_END_LOSS = math.log(10)
_END_WINDOW = 20
# A model that has to learn its end token, as a base model has, takes some tens of steps.
_END_FEWEST = 50
# So many steps without a single trained end token are no chance.
_STEPS_WITHOUT_END = 10


def sft_watchdogs() -> list[Watchdog]:
    """Those of a run of supervised fine-tuning."""
    return [*training_watchdogs(_NOTHING_LEFT), EndTokenUnlearnt()]


class EndTokenUnlearnt:
    """The token that ends an answer is not trained, or stays unlikely: the model would not stop."""

    name = "end_token_unlearnt"

    def __init__(self) -> None:
        self._steps = 0
        self._losses: deque[float] = deque(maxlen=_END_WINDOW)

    def look(self, row: Row) -> str | None:
        """`end_token_loss` is looked at, which is missing where no end token was trained."""
        self._steps += 1
        loss = row.get("end_token_loss")
        if loss is None:
            return self._never_trained()
        self._losses.append(loss)
        typical = median(self._losses)
        if self._steps < _END_FEWEST or typical <= _END_LOSS:
            return None
        return (
            f"where an answer ends, the model gives its end token a probability of {math.exp(-typical):.1%}, so it "
            "would not stop: raise training.learning_rate or train longer; if the model never knew the token, let its "
            "row learn by lora.modules_to_save: [embed_tokens, lm_head], or set chat.template: tokenizer"
        )

    def _never_trained(self) -> str | None:
        if self._losses or self._steps < _STEPS_WITHOUT_END:
            return None
        return (
            f"no answer of {self._steps} steps has its end token, so the model does not learn to stop: raise "
            "chat.max_length or set chat.truncation: drop, and keep chat.min_end_tokens_kept above 0"
        )
