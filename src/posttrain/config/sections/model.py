"""Config section `model`: which model to load, and in what dtype and quantisation."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import LocalOrNamed


class ModelConfig(StrictModel):
    """The base model."""

    name: LocalOrNamed
    """A packaged model (`smollm2-135m-instruct`), a local folder, a `.gguf` file, or a Hugging Face id."""

    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""

    backend: Literal["auto", "hf", "unsloth"] = "auto"
    """`hf` is transformers + PEFT; `auto` takes unsloth where an accelerator and unsloth are both there."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """What the forward pass computes in; `auto` is bfloat16 where the device computes it fast, float16 on older
    CUDA devices, else float32."""

    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention implementation; `auto` leaves the choice to the backend."""

    quantization: Literal["none", "4bit", "8bit"] = "none"
    """Load the base weights quantised by bitsandbytes; needs a CUDA device."""

    adapter: ConfigPath | None = None
    """Folder of a LoRA adapter that training goes on from, instead of a new one."""

    added_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Tokens to add to the vocabulary; padded embedding rows are used first, new rows start at the mean."""

    trust_remote_code: bool = False
    """Run Python code that a model folder or hub id brings along; only for sources you trust."""

    _key: str = PrivateAttr("model")

    @property
    def key(self) -> str:
        """Where the section stands in its config, by which a message names it."""
        return self._key

    def standing_at(self, key: str) -> Self:
        """The same section at another place."""
        copy = self.model_copy()
        copy._key = key
        return copy

    @model_validator(mode="after")
    def _revision_is_read(self) -> "ModelConfig":
        if self.revision is not None and (Path(self.name).is_absolute() or self.name.endswith(".gguf")):
            raise ValueError("revision is for Hugging Face ids, and name is a local path; leave revision out")
        return self

    @model_validator(mode="after")
    def _tokens_differ(self) -> "ModelConfig":
        twice = sorted({token for token in self.added_tokens if self.added_tokens.count(token) > 1})
        if twice:
            raise ValueError(f"added_tokens: {', '.join(twice)} is given twice; keep one")
        return self
