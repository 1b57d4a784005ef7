"""The requests of OpenAI's API that are understood; a field that would have no effect is refused by its name.

Fields beyond OpenAI's, as in other servers: top_k, min_p, repetition_penalty and prompt_logprobs.
"""

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

_WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier")
"""Fields about the client, which change no answer."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "store": (False,),
    "modalities": (["text"],),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "top_logprobs": (0,),
}
"""Values of fields that are not supported which ask for nothing."""

_INT64 = 2**63
StopString = Annotated[str, Field(min_length=1, max_length=200)]
# The first wrong item refuses a list: a message for each of a million would keep all others waiting.
_FAST = Field(fail_fast=True)
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], _FAST]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class StreamOptions(_Strict):
    """What a stream tells besides the answer."""

    include_usage: bool = False
    """Whether a last chunk has the numbers of tokens."""
    include_obfuscation: bool = False
    """Padding against observers of a network; has no effect here."""


class _Request(_Strict):
    model: str = Field(max_length=1000)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1)
    seed: int | None = Field(default=None, ge=-_INT64, lt=_INT64)
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=_INT64)
    min_p: float | None = Field(default=None, ge=0, lt=1)
    repetition_penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    stop: StopString | list[StopString] | None = None
    max_tokens: int | None = Field(default=None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: each for key, each in value.items() if not cls._asks_for_nothing(key, each)}

    @classmethod
    def _asks_for_nothing(cls, key: str, value: Any) -> bool:
        if value is None or key in _WITHOUT_EFFECT:
            return True
        return key not in cls.model_fields and any(value == each for each in _NEUTRAL.get(key, ()))

    @model_validator(mode="after")
    def _at_most_16_stop_strings(self) -> "_Request":
        if isinstance(self.stop, list) and len(self.stop) > 16:
            raise ValueError("stop: at most 16 strings")
        return self


class ChatRequest(_Request):
    """A body of /v1/chat/completions."""

    messages: list[Any]
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False


class CompletionRequest(_Request):
    """A body of /v1/completions."""

    prompt: str | Annotated[list[str], _FAST] | TokenIds | Annotated[list[TokenIds], _FAST]
    logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    """0 asks for those of the answer's tokens; alternatives are not known."""
    prompt_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    """0 asks for those of the prompt's tokens."""

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _one_message_for_all_forms(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError("should be a text, a list of texts, token ids, or a list of lists of token ids") from None
