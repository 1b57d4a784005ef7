"""The base model as files: its folder, and the tokenizer that training would use on it."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import AutoTokenizer

from toolkit.core.config.model import ModelConfig
from toolkit.core.models.hf import HfBackend, model_files
from toolkit.errors import ModelError

_NEEDED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.py", "LICENSE*", "NOTICE*"]


def base_folder(config: ModelConfig) -> Path:
    """The folder with the base model's safetensors; a GGUF file is converted, a Hugging Face id downloaded.

    Raises:
        ModelError: the files cannot be had, or they are quantised.
    """
    name = model_files(config)
    folder = Path(name) if Path(name).is_dir() else _downloaded(name, config.revision)
    quantised = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("quantization_config")
    if quantised:
        raise ModelError(
            f"the base in {folder} is quantised ({quantised.get('quant_method', 'unknown method')}) and cannot be "
            "merged into; set model.name to the model before it was quantised"
        )
    return folder


def tokenizer_with_new_tokens(config: ModelConfig, folder: Path, *, chatml: bool) -> tuple[Any, tuple[int, ...]]:
    """The tokenizer as it was in training, and the ids of the entries that the one in `folder` lacks."""
    local = config.model_copy(update={"name": str(folder), "revision": None})
    tokenizer = HfBackend().load_tokenizer(local, chatml=chatml)
    known = len(AutoTokenizer.from_pretrained(folder, trust_remote_code=config.trust_remote_code))
    return tokenizer, tuple(range(known, len(tokenizer)))


def _downloaded(name: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_NEEDED))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"model.name: cannot download {name!r}: {reason}") from error
