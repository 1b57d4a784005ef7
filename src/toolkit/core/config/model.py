"""Which model to load, from where, and in what shape."""

from typing import Literal

from toolkit.core.config.references import LocalOrNamed
from toolkit.core.config.strict import ConfigPath, StrictModel


class ModelConfig(StrictModel):
    """The base model."""

    name: LocalOrNamed
    """A packaged model (`smollm2-135m-instruct`), a local folder, a `.gguf` file, or a Hugging Face id."""

    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""

    backend: Literal["auto", "hf", "unsloth"] = "auto"
    """`hf` is transformers + PEFT; `auto` takes unsloth where an accelerator and unsloth are both there."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """What the forward pass computes in; `auto` is bfloat16 where the device computes it fast, else float32."""

    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention implementation; `auto` leaves the choice to the backend."""

    quantization: Literal["none", "4bit", "8bit"] = "none"
    """Load the base weights quantised by bitsandbytes; needs a CUDA device."""

    adapter: ConfigPath | None = None
    """Folder of a LoRA adapter that training goes on from, instead of a new one."""

    added_tokens: tuple[str, ...] = ()
    """Tokens to add to the vocabulary; padded embedding rows are used first, new rows start at the mean."""

    trust_remote_code: bool = False
    """Run Python code that a model folder or hub id brings along; only for sources you trust."""
