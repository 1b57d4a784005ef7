"""The base model as files on this machine."""

import json
from pathlib import Path

from huggingface_hub import snapshot_download

from posttrain.base.text import first_line
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ModelError
from posttrain.models.loading import model_files

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


def _downloaded(name: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_NEEDED))
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise ModelError(f"model.name: cannot download {name!r}: {reason}") from error
