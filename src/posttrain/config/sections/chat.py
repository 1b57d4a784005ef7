"""Config section `chat`: how a conversation becomes tokens, and which of them are trained."""

from typing import Literal

from pydantic import Field, model_validator

from posttrain.config.strict import StrictModel


class ChatConfig(StrictModel):
    """Template, loss mask and length limit: the same for training, merging, prediction and chat."""

    template: Literal["chatml", "tokenizer"] = "chatml"
    """`chatml`, or the chat template that comes with the tokenizer."""

    default_system: str | None = None
    """System message for conversations that have none; null adds none."""

    train_on: Literal["all", "last"] = "all"
    """Which assistant turns to train on: all of them, or only the last one of each conversation."""

    reasoning_history: Literal["keep", "drop"] = "keep"
    """Whether earlier assistant turns keep their reasoning block when a later turn is rendered; `drop` requires
    `train_on: last`."""

    max_length: int = Field(default=2048, ge=8)
    """Maximum length of a conversation, in tokens."""

    truncation: Literal["error", "drop", "left", "right"] = "drop"
    """What to do with a longer conversation: stop, drop the row, or cut tokens off its start (left) or its end
    (right)."""

    min_end_tokens_kept: float = Field(default=0.9, ge=0, le=1)
    """Smallest share of answers that must keep their end token after truncation; below it the run does not start."""

    @model_validator(mode="after")
    def _history_fits_the_trained_turns(self) -> "ChatConfig":
        if self.reasoning_history == "drop" and self.train_on == "all":
            raise ValueError(
                "reasoning_history: drop hides the reasoning of earlier turns, so they cannot be trained as they "
                "were written; set train_on: last"
            )
        if self.reasoning_history == "drop" and self.template == "tokenizer":
            raise ValueError(
                "reasoning_history: drop is for template: chatml; the tokenizer's own template decides for itself, "
                "so leave it out"
            )
        return self
