"""Config section `chat`: how a conversation becomes tokens, and which of them are trained."""

import json
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, field_validator, model_validator

from posttrain.config.jinja_source import RESERVED, read_template
from posttrain.config.strict import StrictModel


def _template(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value not in ("chatml", "tokenizer"):
        return read_template(value, info)
    return value


class TagsConfig(StrictModel):
    """Texts that ChatML writes around a part of an answer, exactly as they are given, line breaks included."""

    open: str = Field(min_length=1)
    """What comes before it."""

    close: str = Field(min_length=1)
    """What comes after it."""


class ReasoningTagsConfig(TagsConfig):
    """The tags around the reasoning of an answer."""

    opened_in_prompt: bool = False
    """Whether the prompt ends with the opening tag, so that every answer begins with reasoning and only what follows
    the tag is trained and generated."""


class ChatConfig(StrictModel):
    """Template, loss mask and length limit: the same for training, merging, prediction and chat."""

    template: Annotated[str, BeforeValidator(_template)] = "chatml"
    """`chatml`, `tokenizer` for the chat template that comes with it, or the path of a Jinja file of your own. A run's
    config holds the text of that file."""

    template_variables: dict[str, JsonValue] | None = None
    """Variables for the chat template, such as `{enable_thinking: false}`; not for `chatml`, which has none."""

    default_system: str | None = None
    """System message for conversations that have none; null adds none."""

    train_on: Literal["all", "last"] = "all"
    """Which assistant turns to train on: all of them, or only the last one of each conversation."""

    reasoning_history: Literal["keep", "drop"] = "keep"
    """Whether earlier assistant turns keep their reasoning block when a later turn is rendered; `drop` requires
    `train_on: last`."""

    reasoning_tags: ReasoningTagsConfig | None = None
    """The tags around the reasoning of an answer; null writes `<think>` and `</think>` on lines of their own, as Qwen's
    templates do. Only for `chatml`."""

    solution_tags: TagsConfig | None = None
    """Tags around the content of an answer that calls no tool; null writes none. Only for `chatml`."""

    max_length: int = Field(default=2048, ge=8)
    """Maximum length of a conversation, in tokens."""

    truncation: Literal["error", "drop", "left", "right"] = "drop"
    """What to do with a longer conversation: stop, drop the row, or cut tokens off its start (left) or its end
    (right)."""

    min_end_tokens_kept: float = Field(default=0.9, ge=0, le=1)
    """Smallest share of answers that must keep their end token after truncation; below it the run does not start."""

    @field_validator("template_variables")
    @classmethod
    def _can_be_given(cls, variables: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        for name, value in (variables or {}).items():
            if not name.isidentifier():
                raise ValueError(f"{name!r} cannot be a variable's name; use letters, digits and underscores")
            if name in RESERVED:
                raise ValueError(f"{name} is set by the toolkit or the tokenizer; leave it out")
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise ValueError(f"{name} has no value in JSON; give a finite number") from None
        return variables

    @model_validator(mode="after")
    def _history_fits_the_trained_turns(self) -> "ChatConfig":
        if self.reasoning_history == "drop" and self.template != "chatml":
            raise ValueError(
                "reasoning_history: drop is for template: chatml; another template decides for itself, so leave it out"
            )
        if self.reasoning_history == "drop" and self.train_on == "all":
            raise ValueError(
                "reasoning_history: drop hides the reasoning of earlier turns, so they cannot be trained as they "
                "were written; set train_on: last"
            )
        return self

    @model_validator(mode="after")
    def _settings_fit_the_template(self) -> "ChatConfig":
        if self.template_variables and self.template == "chatml":
            raise ValueError(
                "template_variables: template: chatml has none; leave them out, or set template to tokenizer or a file"
            )
        tags = [tag for each in (self.reasoning_tags, self.solution_tags) if each for tag in (each.open, each.close)]
        if tags and self.template != "chatml":
            raise ValueError(
                "reasoning_tags and solution_tags are for template: chatml; another template writes its own, so leave "
                "them out"
            )
        for tag in tags:
            if sum(tag in other for other in tags) > 1:
                raise ValueError(f"the tag {tag!r} is contained in another one; make them all different")
            if "<|im_" in tag:
                raise ValueError(f"the tag {tag!r} has a control token of ChatML; choose another text")
        return self

    @property
    def own_template(self) -> str | None:
        """The text of a template of one's own; None for `chatml` and `tokenizer`."""
        return None if self.template in ("chatml", "tokenizer") else self.template
