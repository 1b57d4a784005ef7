"""Convert a `.gguf` file into a model folder, once.

transformers reads GGUF, but dequantises it anew at each start (15 s for 135 M weights) and cannot save the
result as it is. The folder in the cache loads in a fraction of a second, by every backend and by vLLM.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

from posttrain.base.cache import cache_dir
from posttrain.base.files import atomic_rename_dir, content_digest, fsync_tree, temporary_sibling
from posttrain.base.text import first_line
from posttrain.errors import ModelError
from posttrain.models.location import require_all_weights

logger = logging.getLogger(__name__)

# Raised when the same file is to be converted otherwise, so that no older folder is taken.
_FORMAT = 2


def converted_folder(gguf_file: Path) -> Path:
    """The safetensors folder of `gguf_file`, converted now if it is not in the cache yet."""
    folder = cache_dir() / "models" / f"{gguf_file.stem}-{content_digest(gguf_file)[:16]}-{_FORMAT}"
    if not folder.is_dir():
        logger.info("converting %s once into %s", gguf_file.name, folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = temporary_sibling(folder)
        try:
            _convert(gguf_file, aside)
            fsync_tree(aside)
            atomic_rename_dir(aside, folder)
        except OSError:
            # Another process may have put the same folder there first: its files are as good as ours.
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def _convert(gguf_file: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # What lies beside the file is not what the config names: no code of it runs, and nobody is asked.
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf_file.parent),
        "gguf_file": gguf_file.name,
        "trust_remote_code": False,
    }
    try:
        tokenizer = AutoTokenizer.from_pretrained(**source)
        loader: Any = AutoModelForCausalLM.from_pretrained
        model, loading = loader(**source, dtype=torch.bfloat16, output_loading_info=True)
    except Exception as error:  # a damaged file makes its readers raise anything
        reason = first_line(error)
        raise ModelError(f"model.name: cannot read {gguf_file}: {reason}") from error
    require_all_weights(str(gguf_file), loading["missing_keys"])
    # save_pretrained refuses a model that still says it is quantised; the weights no longer are.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # The tokenizer that transformers reads from the file calls the bos token eos; the file's own ids, which
    # the model config carries, are right.
    for role in ("bos", "eos", "pad"):
        token_id = getattr(model.config, f"{role}_token_id", None)
        if isinstance(token_id, int):
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(token_id))
    _correct_byte_level(tokenizer)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _correct_byte_level(tokenizer: Any) -> None:
    """Write a byte-level tokenizer as one: transformers gives that of every Llama what only SentencePiece's have.

    Its ids stay. But a program that goes by `byte_fallback` would take its tokens for SentencePiece's pieces, and
    cleaning up would take blanks out of what was said.
    """
    from tokenizers import decoders, pre_tokenizers

    backend = tokenizer.backend_tokenizer
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        backend.model.byte_fallback = False
        backend.decoder = decoders.ByteLevel()
        tokenizer.clean_up_tokenization_spaces = False
